"""Counts what a check compares, and keeps the first and the largest difference."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.runtime.format.parity import Check


@dataclass
class Tally:
    """What a check has compared so far."""

    compared: int = 0
    differing: int = 0
    worst: float = 0.0
    """The largest difference as a multiple of what is allowed."""
    problem: str = ""
    """The first difference beyond it as a sentence; empty: there is none."""

    def add(self, compared: int, differing: int, excess: float, problem: str) -> None:
        """Count more that was compared, with its largest difference and its problem, if any."""
        self.compared += compared
        self.differing += differing
        self.worst = max(self.worst, excess)
        self.problem = self.problem or problem

    def check(self, name: str, unit: str) -> Check:
        """Make the check, which passes if nothing differs and there is no problem."""
        passed = not (self.differing or self.problem)
        return Check(name, self.compared, unit, self.differing, passed, self.worst, self.problem)
