"""Finding a checkpoint: its name on the command line -> a directory.

The module imports no heavy libraries, so that the command line refuses a wrong name at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dragoman.errors import DragomanError
from dragoman.progress import Progress, Silent
from dragoman.reference_model.pretrained import PRETRAINED, find_checkpoint
from dragoman.runtime.format.manifest import Origin

from .formats.detection import check_is_checkpoint
from .formats.hub import fetch, is_model_id

LONGEST_NAME = 100
"""Maximum characters of a name in an error."""


@dataclass(frozen=True)
class LocatedCheckpoint:
    """The directory of a checkpoint.

    Attributes:
        config: fields of the directory's `config.json`; {} without that file
        origin: the model of the Hugging Face Hub in the directory, if any
    """

    directory: Path
    config: Mapping[str, Any] = field(repr=False)
    origin: Origin | None = None

    @property
    def name(self) -> str:
        """The last part of the directory's path, or of the model's id at the hub."""
        if self.origin is None:
            return self.directory.resolve().name
        return self.origin.model.rpartition("/")[2]


def locate_checkpoint(
    name_or_path: str | Path, revision: str | None = None, progress: Progress | None = None
) -> LocatedCheckpoint:
    """Find the directory of a checkpoint, and fetch a model of the Hugging Face Hub.

    Args:
        name_or_path: in order of precedence, the name of a checkpoint of Dragoman, such as
            "g2p-en"; a directory; or, as a string, the id of a model at the hub, `owner/model`
        revision: a branch, a tag or a commit of a model at the hub; None: main
        progress: receives the progress of a download

    Raises:
        DragomanError: the checkpoint does not exist, has an unknown format, or cannot be fetched.
    """
    name = str(name_or_path)
    if name in PRETRAINED or (name and _exists(Path(name))):
        if revision is not None:
            raise DragomanError(
                "revision: expected one only with the id of a model at the Hugging Face Hub, "
                f"found {revision!r} with {name}"
            )
        directory, origin = find_checkpoint(name), None
    elif isinstance(name_or_path, str) and is_model_id(name):
        directory = fetch(name, revision, progress or Silent())
        origin = Origin(name, directory.name)
    else:
        raise DragomanError(
            "expected the directory of a checkpoint, the id of a model at the Hugging Face Hub "
            "(owner/model), or the name of one that ships with Dragoman "
            f"({', '.join(PRETRAINED)}), found {_shortened(name)!r}"
        )
    return LocatedCheckpoint(directory, check_is_checkpoint(directory), origin)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # the name is too long for the file system
        return False


def _shortened(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..."
