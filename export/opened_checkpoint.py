"""A checkpoint with everything that is stored next to its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dragoman.errors import DragomanError
from dragoman.reference_model import Transformer
from dragoman.reference_model.pretrained import find_checkpoint
from dragoman.reference_model.recipes import RECIPES, Recipe
from dragoman.reference_model.recipes.recipe import RECIPE_FILE
from dragoman.regular_files import FileError
from dragoman.strict_json import read_json

from .checkpoints import read_checkpoint
from .tokenizers import TokenizerFiles


@dataclass(frozen=True)
class OpenedCheckpoint:
    """A trained model, and what its directory holds.

    Attributes:
        model: fp32
        tokenizers: None: the model takes and gives token ids
        recipe: the recipe of Dragoman that trained it, if any
    """

    directory: Path
    model: Transformer
    tokenizers: TokenizerFiles | None
    recipe: Recipe | None

    @property
    def name(self) -> str:
        return self.recipe.name if self.recipe else self.directory.resolve().name


def open_checkpoint(name_or_path: str | Path) -> OpenedCheckpoint:
    """Read a checkpoint that any supported library left.

    Args:
        name_or_path: the name of one that comes with Dragoman, such as "g2p-en", or a directory

    Raises:
        CheckpointError, ConfigError: the model cannot be read; lists all problems.
        DragomanError: there is no such checkpoint, or its tokenizers or recipe cannot be read.
    """
    directory = find_checkpoint(str(name_or_path))
    read = read_checkpoint(directory)
    return OpenedCheckpoint(directory, read.model, read.tokenizers, _recipe(directory))


def _recipe(directory: Path) -> Recipe | None:
    path = directory / RECIPE_FILE
    if not path.exists():
        return None
    expected = f"{path}: expected a JSON object that names a recipe"
    try:
        return RECIPES.get(read_json(path)["recipe"])
    except FileError as error:
        raise DragomanError(f"{expected}: {error.problem}") from error
    except (KeyError, TypeError) as error:
        raise DragomanError(expected) from error
