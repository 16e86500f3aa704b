"""Files of tensors, written completely or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from dragoman import whole_files


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """As `whole_files.write_whole`, for what libraries of tensors write.

    Raises:
        DragomanError: the file cannot be written; a previous file at `path` is left unchanged.
    """
    # safetensors raises its own error, torch.save a RuntimeError.
    whole_files.write_whole(path, write, (OSError, SafetensorError, RuntimeError))
