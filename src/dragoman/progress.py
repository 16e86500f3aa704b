"""The progress of long-running work."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives progress while work is done. Methods return at once and raise nothing; they may be
    called from another thread, one at a time.
    """

    def stage(self, description: str) -> None:
        """A stage begins, such as "exporting the encoder"."""

    def advance(self, done: int, total: int) -> None:
        """The present stage has done this part of its total."""


class Silent:
    """Reports nothing."""

    def stage(self, description: str) -> None: ...

    def advance(self, done: int, total: int) -> None: ...
