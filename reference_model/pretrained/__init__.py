"""Checkpoints that ship with Dragoman, by name. Each folder holds the licence of its data."""

from __future__ import annotations

from pathlib import Path

from dragoman.errors import DragomanError

PRETRAINED = ("g2p-en", "verses-en", "bible-en-es")


def find_checkpoint(name_or_path: str) -> Path:
    """Find the directory of a checkpoint that ships with Dragoman, or an existing path.

    A name takes precedence: a folder called `g2p-en` in the working directory is `./g2p-en`.

    Raises:
        DragomanError: the argument is neither a name nor a path; lists the names.
    """
    if name_or_path in PRETRAINED:
        return Path(__file__).parent / name_or_path
    path = Path(name_or_path)
    if path.exists():
        return path
    raise DragomanError(
        f"expected the directory of a checkpoint, or the name of one that ships with Dragoman "
        f"({', '.join(PRETRAINED)}), found {name_or_path!r}"
    )
