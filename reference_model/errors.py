"""What a user of the reference model can get wrong."""

from __future__ import annotations

from pathlib import Path

from dragoman.errors import DragomanError


class ConfigError(DragomanError):
    """An invalid model configuration; lists every problem found.

    Attributes:
        problems: one sentence each
    """

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("invalid model configuration: " + "; ".join(problems))


class CheckpointError(DragomanError):
    """A checkpoint that is unreadable or does not match its configuration; lists every problem.

    Attributes:
        problems: one sentence each
    """

    def __init__(self, path: Path, problems: list[str]) -> None:
        self.problems = problems
        super().__init__(f"{path}: " + "; ".join(problems))
