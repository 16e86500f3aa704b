"""Atomic file writing: a file is written completely or not at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from .errors import DragomanError


def write_whole(
    path: Path,
    write: Callable[[Path], object],
    failures: tuple[type[Exception], ...] = (OSError,),
) -> None:
    """Let `write` write a temporary file next to `path`, then rename it to `path`, whose directory
    is created if it does not exist.

    Args:
        failures: what `write` raises if it cannot

    Raises:
        DragomanError: the file cannot be written; a previous file at `path` is left unchanged.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(partial)
        partial.replace(path)
    except failures as error:
        raise DragomanError(f"cannot write {path}: {error}") from error
    finally:
        with suppress(FileNotFoundError, NotADirectoryError):
            partial.unlink()
