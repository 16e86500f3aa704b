"""Progress that remembers."""

from __future__ import annotations


class RecordedProgress:
    """See `dragoman.progress.Progress`."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.done: list[tuple[int, int]] = []

    def stage(self, description: str) -> None:
        self.stages.append(description)

    def advance(self, done: int, total: int) -> None:
        self.done.append((done, total))
