"""What an engine tells whoever watches it."""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    """Called on the threads that decode: it must return at once."""

    def encoded(self, sources: int, seconds: float) -> None:
        """Sources were encoded, and joined a batch."""

    def stepped(self, rows: int, seconds: float) -> None:
        """A batch of so many rows in use has decoded one token each."""

    def failed(self, reason: str) -> None:
        """Something went wrong that is no request's fault."""


class Nobody:
    """Watches nothing."""

    def encoded(self, sources: int, seconds: float) -> None: ...

    def stepped(self, rows: int, seconds: float) -> None: ...

    def failed(self, reason: str) -> None: ...
