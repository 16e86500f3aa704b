"""The progress of long-running work, and the log messages of libraries that it hides."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
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


@contextlib.contextmanager
def quiet(*libraries: str, level: int = logging.ERROR) -> Iterator[None]:
    """Hide log messages of libraries that do not concern users.

    Args:
        libraries: names of loggers
        level: lowest level that is shown
    """
    loggers = [logging.getLogger(name) for name in libraries]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, before in zip(loggers, levels, strict=True):
            logger.setLevel(before)
