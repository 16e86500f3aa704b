"""Checkpoints that ship with Dragoman, by name. Each folder holds the licence of its data.

The folders are the distribution dragoman-models: its `pyproject.toml` is here.
"""

from importlib.util import find_spec
from pathlib import Path

from dragoman.errors import DragomanError, shown

PRETRAINED = ("g2p-en", "verses-en", "bible-en-es", "bible-en-es-student")


def find_checkpoint(name_or_path: str) -> Path:
    """Find the directory of a checkpoint that ships with Dragoman, or an existing path.

    A name takes precedence: a folder called `g2p-en` in the working directory is `./g2p-en`.

    Raises:
        DragomanError: the argument is neither a name nor a path, or dragoman-models is not
            installed.
    """
    if name_or_path in PRETRAINED:
        return _find_shipped(name_or_path)
    path = Path(name_or_path)
    if path.exists():
        return path
    raise DragomanError(
        f"expected the directory of a checkpoint, or the name of one that ships with Dragoman "
        f"({', '.join(PRETRAINED)}), found {shown(name_or_path)}"
    )


def _find_shipped(name: str) -> Path:
    folders = [Path(__file__).parent]  # in a clone
    if (models := find_spec("dragoman_models")) is not None:
        folders += map(Path, models.submodule_search_locations or ())
    for folder in folders:
        if (folder / name).is_dir():
            return folder / name
    needed = "" if find_spec("torch") else "'dragoman[export]' "
    raise DragomanError(
        f"{name} is shipped with dragoman-models, which is not installed: "
        f"pip install {needed}dragoman-models"
    )
