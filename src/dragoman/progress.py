"""The progress of long-running work."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives progress while work is done.

    Methods return at once and raise nothing. They may be called from another thread, one at a time.
    """

    def stage(self, description: str) -> None:
        """Notify that a stage begins, such as "exporting the encoder"."""

    def advance(self, done: int, total: int) -> None:
        """Notify that the current stage has done this part of its total."""


class Silent:
    """Ignores progress."""

    def stage(self, description: str) -> None:
        """Ignore a stage."""

    def advance(self, done: int, total: int) -> None:
        """Ignore how much is done."""
