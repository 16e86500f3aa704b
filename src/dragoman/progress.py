"""How long work reports its progress."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called while work goes on. Methods return at once and raise nothing."""

    def stage(self, description: str) -> None:
        """A stage begins, such as "exporting the encoder"."""

    def advance(self, done: int, total: int) -> None:
        """So much of the present stage is done."""


class Silent:
    """Reports nothing."""

    def stage(self, description: str) -> None: ...

    def advance(self, done: int, total: int) -> None: ...
