"""A checkpoint with everything that is stored next to its weights."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from dragoman.errors import DragomanError
from dragoman.reference_model import ReferenceModel, Transformer
from dragoman.reference_model.recipes import RECIPES, Recipe
from dragoman.reference_model.recipes.recipe import RECIPE_FILE
from dragoman.regular_files import FileError
from dragoman.runtime.format.records import Origin
from dragoman.strict_json import read_json

from .checkpoints import read_checkpoint
from .locating import LocatedCheckpoint
from .tokenizers import TokenizerFiles


@dataclass(frozen=True)
class OpenedCheckpoint:
    """A trained model, and what its directory holds.

    Attributes:
        model: fp32
        tokenizers: None: the model takes and gives token ids
        recipe: the recipe of Dragoman that trained it, if any
        notes, summarizes: see `Checkpoint`
    """

    located: LocatedCheckpoint
    model: ReferenceModel
    tokenizers: TokenizerFiles | None
    recipe: Recipe | None
    notes: tuple[str, ...] = ()
    summarizes: bool = False

    @property
    def directory(self) -> Path:
        return self.located.directory

    @property
    def origin(self) -> Origin | None:
        return self.located.origin

    @property
    def name(self) -> str:
        return self.recipe.name if self.recipe else self.located.name


def open_checkpoint(located: LocatedCheckpoint) -> OpenedCheckpoint:
    """Read a checkpoint that any supported library left.

    Args:
        located: from `locating.locate_checkpoint`

    Raises:
        CheckpointError, ConfigError: the model cannot be read; lists all problems.
        DragomanError: its tokenizers or recipe cannot be read.
    """
    read = read_checkpoint(located.directory)
    recipe = _recipe(located.directory)
    _name_alignment(read.model, recipe)
    return OpenedCheckpoint(
        located, read.model, read.tokenizers, recipe, read.notes, read.summarizes
    )


def _name_alignment(model: ReferenceModel, recipe: Recipe | None) -> None:
    """Let a model know the heads that its recipe says align words."""
    layer = None if recipe is None else recipe.alignment_layer
    if layer is None or not isinstance(model, Transformer) or layer >= model.config.decoder_layers:
        return
    heads = tuple((layer, head) for head in range(model.config.num_heads))
    model.generation = dataclasses.replace(model.generation, alignment_heads=heads)


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
