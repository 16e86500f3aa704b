"""Writing files so that they appear whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from dragoman.errors import DragomanError


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file beside `path` and put it in its place.

    Raises:
        DragomanError: it cannot be written; what was at `path` is as it was.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        write(partial)
        partial.replace(path)
    # The libraries that write have types of their own: torch a RuntimeError.
    except (OSError, SafetensorError, RuntimeError) as error:
        raise DragomanError(f"cannot write {path}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
