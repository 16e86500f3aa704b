"""Finding a checkpoint: its name on the command line -> a directory.

It imports no heavy libraries, so that the command line refuses a wrong name at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dragoman.errors import DragomanError, shown
from dragoman.progress import Progress, Silent
from dragoman.reference_model.pretrained import PRETRAINED, find_checkpoint
from dragoman.runtime.format.manifest import Origin

from .formats.adapter_config import AdapterConfig, read_adapter
from .formats.detection import check_is_checkpoint
from .formats.hub import fetch, is_model_id


@dataclass(frozen=True)
class LocatedCheckpoint:
    """The directory of a checkpoint."""

    directory: Path
    config: Mapping[str, Any] = field(repr=False)
    """Fields of the directory's `config.json`; {} without that file."""
    origin: Origin | None = None
    """The model of the Hugging Face Hub in the directory, if any."""
    adapters: tuple[AdapterConfig, ...] = ()
    """Adapters from other directories that are merged into the weights, in this order."""

    @property
    def name(self) -> str:
        """The last part of the directory's path, or of the model's id at the hub."""
        if self.origin is None:
            return self.directory.resolve().name
        return self.origin.model.rpartition("/")[2]


def locate_checkpoint(
    name_or_path: str | Path,
    revision: str | None = None,
    progress: Progress | None = None,
    adapters: Sequence[str | Path] = (),
) -> LocatedCheckpoint:
    """Find the directory of a checkpoint, and fetch a model of the Hugging Face Hub.

    Args:
        name_or_path: in order of precedence, the name of a checkpoint of Dragoman, such as
            "g2p-en"; a directory; or, as a string, the id of a model at the hub, `owner/model`
        revision: a branch, a tag or a commit of a model at the hub; None: main
        adapters: directories of LoRA adapters of PEFT
    """
    name = str(name_or_path)
    if name in PRETRAINED or (name and _exists(Path(name))):
        if revision is not None:
            raise DragomanError(
                "revision: expected one only with the id of a model at the Hugging Face Hub, "
                f"found {shown(revision)} with {name}"
            )
        directory, origin = find_checkpoint(name), None
    elif isinstance(name_or_path, str) and is_model_id(name):
        directory = fetch(name, revision, progress or Silent())
        origin = Origin(name, directory.name)
    else:
        raise DragomanError(
            "expected the directory of a checkpoint, the id of a model at the Hugging Face Hub "
            "(owner/model), or the name of one that ships with Dragoman "
            f"({', '.join(PRETRAINED)}), found {shown(name)}"
        )
    config = check_is_checkpoint(directory)
    found = tuple(read_adapter(Path(adapter)) for adapter in adapters)
    return LocatedCheckpoint(directory, config, origin, found)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # the name is too long for the file system
        return False
