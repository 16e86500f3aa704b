"""Checkpoints that come with Dragoman, by name. Each folder holds its data's licence."""

from __future__ import annotations

from pathlib import Path

from dragoman.errors import DragomanError

PRETRAINED = ("g2p-en",)


def find_checkpoint(name_or_path: str) -> Path:
    """The directory of a checkpoint: the name of one that comes along, or an existing path.

    A folder of that name here is meant by `./NAME`.

    Raises:
        DragomanError: neither; lists the names there are.
    """
    if name_or_path in PRETRAINED:
        return Path(__file__).parent / name_or_path
    path = Path(name_or_path)
    if path.exists():
        return path
    raise DragomanError(
        f"expected the directory of a checkpoint, or the name of one that comes with Dragoman "
        f"({', '.join(PRETRAINED)}), found {name_or_path!r}"
    )
