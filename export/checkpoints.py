"""A checkpoint directory of any supported library -> a reference model and its tokenizers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dragoman.errors import DragomanError
from dragoman.files.regular_files import FileError
from dragoman.files.strict_json import read_json
from dragoman.reference_model import ModelConfig, ReferenceModel, Transformer, load_checkpoint
from dragoman.reference_model.recipes import RECIPES, Recipe
from dragoman.reference_model.recipes.recipe import (
    RECIPE_FILE,
    SOURCE_TOKENIZER_FILE,
    TARGET_TOKENIZER_FILE,
)
from dragoman.runtime.format.manifest import Origin

from .families import STATE_DICT_READERS
from .families.checkpoint import Checkpoint
from .families.ctranslate2 import read_ctranslate2
from .families.encoders.sentence_transformers import read_sentence_transformers
from .families.hugging_face import read_hugging_face, tokenizer_kinds
from .formats.detection import CONFIG_FILE, format_of
from .formats.json_files import Values, read_json_if_present
from .locating import LocatedCheckpoint
from .registry import FormatName
from .tokenizers.files import TokenizerFiles, read_library_file


@dataclass(frozen=True, kw_only=True)
class OpenedCheckpoint(Checkpoint):
    """A checkpoint with its directory.

    Attributes:
        recipe: the recipe of Dragoman that trained the checkpoint, if any
    """

    located: LocatedCheckpoint
    recipe: Recipe | None = None

    @property
    def directory(self) -> Path:
        """The checkpoint's directory."""
        return self.located.directory

    @property
    def origin(self) -> Origin | None:
        """The model of the Hugging Face Hub in the directory, if any."""
        return self.located.origin

    @property
    def name(self) -> str:
        """The name of the recipe, the model at the hub or the directory."""
        return self.recipe.name if self.recipe else self.located.name


def open_checkpoint(located: LocatedCheckpoint) -> OpenedCheckpoint:
    """Read a checkpoint of any supported library.

    Args:
        located: from `locating.locate_checkpoint`

    Raises:
        CheckpointError, ConfigError: the model cannot be read; lists all problems.
        DragomanError: the tokenizers or the recipe cannot be read.
    """
    read = _read(located.directory, located.config)
    recipe = _recipe(located.directory)
    _set_alignment_heads(read.model, recipe)
    return OpenedCheckpoint(**vars(read), located=located, recipe=recipe)


def read_checkpoint(directory: Path) -> Checkpoint:
    """Read a checkpoint of Dragoman, Hugging Face or CTranslate2, or a state dictionary.

    `docs/families.md` lists the contents that are read.

    Raises:
        CheckpointError, ConfigError: the model cannot be read; all problems are listed.
        DragomanError: the directory is not a checkpoint, or its tokenizers cannot be read.
    """
    return _read(directory, read_json_if_present(directory / CONFIG_FILE))


def _read(directory: Path, config: Values) -> Checkpoint:
    return READERS[format_of(directory, config).name](directory, config)


def _read_dragoman(directory: Path, config: Values) -> Checkpoint:
    model = load_checkpoint(directory, config)
    return Checkpoint(model, find_dragoman_tokenizers(directory, model.config))


def _read_state_dictionary(directory: Path, config: Values) -> Checkpoint:
    model = STATE_DICT_READERS[config["model_type"]](directory, config)
    return Checkpoint(model, find_dragoman_tokenizers(directory, model.config))


def _read_sentence_transformers(directory: Path, config: Values) -> Checkpoint:
    return read_sentence_transformers(directory, config, tokenizer_kinds())


READERS: Mapping[FormatName, Callable[[Path, Values], Checkpoint]] = {
    "Dragoman": _read_dragoman,
    "Hugging Face": read_hugging_face,
    "sentence-transformers": _read_sentence_transformers,
    "CTranslate2": read_ctranslate2,
    "state dictionary": _read_state_dictionary,
}
"""Readers by format: directory, fields of its `config.json` or {} -> contents."""


def find_dragoman_tokenizers(directory: Path, config: ModelConfig) -> TokenizerFiles | None:
    """Find the tokenizers of both sides, as `dragoman train` writes them; None if there are none.

    Raises:
        DragomanError: one file of the two is missing, a file is damaged, or ids are outside the
            model's vocabulary.
    """
    names = (SOURCE_TOKENIZER_FILE, TARGET_TOKENIZER_FILE)
    source, target = (directory / name for name in names)
    present = [source.exists(), target.exists()]
    if not any(present):
        return None
    if not all(present):
        raise DragomanError(
            f"{directory}: expected both {' and '.join(names)}, or neither, found one"
        )
    read_library_file(source, config.source_vocab_size or config.target_vocab_size)
    read_library_file(target, config.target_vocab_size)
    return TokenizerFiles(source, target)


def _set_alignment_heads(model: ReferenceModel, recipe: Recipe | None) -> None:
    """Set the heads that align words to all heads of the layer that the recipe states."""
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
