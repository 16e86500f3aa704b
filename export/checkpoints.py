"""A checkpoint directory of any supported library -> a reference model and its tokenizers."""

from __future__ import annotations

import dataclasses
import filecmp
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.errors import DragomanError
from dragoman.files.regular_files import FileError
from dragoman.files.strict_json import read_json
from dragoman.reference_model import ReferenceModel, Transformer, load_checkpoint
from dragoman.reference_model.recipes import RECIPES, Recipe
from dragoman.reference_model.recipes.recipe import (
    RECIPE_FILE,
    SOURCE_TOKENIZER_FILE,
    TARGET_TOKENIZER_FILE,
)
from dragoman.runtime.format.manifest import Adapter, Origin

from .exporter import audio_features
from .families import STATE_DICT_READERS
from .families.checkpoint import Checkpoint
from .families.ctranslate2 import read_ctranslate2
from .families.encoders.sentence_transformers import read_modules, read_sentence_transformers
from .families.hugging_face import read_hugging_face, tokenizer_kinds
from .families.marian_nmt import read_marian
from .formats.adapter_config import AdapterConfig, with_own
from .formats.contents import READ, TOKENIZER, file_notes, listed
from .formats.detection import (
    CONFIG_FILE,
    CTRANSLATE2_FILE,
    INDEX_SUFFIX,
    TENSOR_FILES,
    WEIGHTS_FILE,
    format_of,
    marian_files,
)
from .formats.json_files import Values, read_json_if_present
from .locating import LocatedCheckpoint
from .registry import FormatName
from .tokenizers.files import LIBRARY_FILE, TokenizerFiles, read_library_file
from .tokenizers.settings import CONFIG_FILE as TOKENIZER_CONFIG_FILE


@dataclass(frozen=True, kw_only=True)
class OpenedCheckpoint(Checkpoint):
    """A checkpoint with its directory."""

    located: LocatedCheckpoint
    recipe: Recipe | None = None
    """The recipe of Dragoman that trained the checkpoint, if any."""
    trained_for: Sequence[str] = ()
    """The metrics that its training recorded, if any."""

    @property
    def directory(self) -> Path:
        """The checkpoint's directory."""
        return self.located.directory

    @property
    def origin(self) -> Origin | None:
        """The model of the Hugging Face Hub in the directory, if any."""
        return self.located.origin

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """The adapters from other directories that are merged into the model."""
        return tuple(Adapter(found.name, found.sha256()) for found in self.located.adapters)

    @property
    def name(self) -> str:
        """The name of the recipe, the model at the hub or the directory."""
        return self.recipe.name if self.recipe else self.located.name


def open_checkpoint(
    located: LocatedCheckpoint, audio_window: float | None = None
) -> OpenedCheckpoint:
    """Read a checkpoint of any supported library.

    Args:
        audio_window: seconds of audio that the encoder of a speech model is to read at once, of
            which there are fewer than it was trained with; None: as many
    """
    read = _read(located.directory, located.config, located.adapters)
    notes = [*read.notes]
    notes += [note for adapter in located.adapters for note in _of_adapter(adapter, located)]
    recipe, metrics = _recipe(located.directory)
    _set_alignment_heads(read.model, recipe)
    if audio_window is not None:
        whole = shorten_window(read.model, audio_window)
        if audio_window < whole:
            notes.append(
                f"the encoder reads {audio_window:g} s of audio at once, and was trained on "
                f"{whole:g} s: longer recordings should be cut at silence (cut_at_silence)"
            )
    read = dataclasses.replace(read, notes=tuple(notes))
    return OpenedCheckpoint(**vars(read), located=located, recipe=recipe, trained_for=metrics)


def read_checkpoint(directory: Path) -> Checkpoint:
    """Read a checkpoint of Dragoman, Hugging Face or CTranslate2, or a state dictionary.

    `docs/families.md` lists the contents that are read.
    """
    return _read(directory, read_json_if_present(directory / CONFIG_FILE))


def _read(directory: Path, config: Values, adapters: Sequence[AdapterConfig] = ()) -> Checkpoint:
    name = format_of(directory, config).name
    if name not in WITH_ADAPTERS and (found := with_own(directory, adapters)):
        raise DragomanError(
            f"{found[0].directory}: expected a base of {' or '.join(WITH_ADAPTERS)} for an "
            f"adapter, found one of {name}"
        )
    read = READERS[name](directory, config, adapters)
    return dataclasses.replace(read, notes=(*read.notes, *_of_files(name, directory, config)))


def _of_files(name: FormatName, directory: Path, config: Values) -> list[str]:
    folders: list[str] = []
    directories = {directory}
    if name == "sentence-transformers":
        modules = read_modules(directory)
        folders = [
            part for module in modules for part in module.directory.relative_to(directory).parts[:1]
        ]
        directories |= {module.directory for module in modules if module.kind == "Transformer"}
    notes = []
    for each in sorted(directories):
        notes += file_notes(each, READ[name], _weights_of(name, each, config), folders)
        settings = read_json_if_present(each / TOKENIZER_CONFIG_FILE)
        notes += TOKENIZER.notes(TOKENIZER_CONFIG_FILE, settings)
        if settings.get("truncation_side") == "left":
            notes.append(
                f"{TOKENIZER_CONFIG_FILE}: truncation_side: 'left' is not followed: what cuts long "
                "texts (truncate) cuts them at their end"
            )
    return notes


def _weights_of(name: FormatName, directory: Path, config: Values) -> Sequence[str]:
    match name:
        case "CTranslate2":
            return [CTRANSLATE2_FILE]
        case "Marian":
            return [path.name for path in marian_files(directory)]
        case "Dragoman":
            return [WEIGHTS_FILE]
        case "state dictionary":  # the only one, if none is named
            stated = config.get("weights")
            return [str(stated)] if stated else [path.name for path in directory.iterdir()]
    for file in TENSOR_FILES:
        if (directory / file).exists():
            return TENSOR_FILES  # of both, if they are the same
        index = directory / (file + INDEX_SUFFIX)
        if index.exists():
            return [index.name, *read_json_if_present(index)["weight_map"].values()]
    return []


def _of_adapter(adapter: AdapterConfig, located: LocatedCheckpoint) -> list[str]:
    """Return notes on an adapter of another base, and on tokenizers that are not its base's."""
    notes = list(adapter.notes)
    names = (located.name, str(located.config.get("_name_or_path")))
    known = {name.rstrip("/").rpartition("/")[2] for name in names}
    if adapter.base is not None and adapter.base.rstrip("/").rpartition("/")[2] not in known:
        notes.append(
            f"the adapter {adapter.name} was trained on {adapter.base[:100]}, and is merged into "
            f"{located.name}"
        )
    others = []
    for path in filter(Path.exists, (adapter.directory / name for name in VOCABULARIES)):
        own = located.directory / path.name
        if not (own.exists() and filecmp.cmp(own, path, shallow=False)):
            others.append(path.name)
    if others:
        notes.append(
            f"{listed(others)} of the adapter {adapter.name} is not read: "
            "the tokenizer is that of the base, and differs"
        )
    return notes


VOCABULARIES = (LIBRARY_FILE, "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt")
"""Files of tokenizers that a directory of an adapter may have, too."""


def _with_tokenizers(model: ReferenceModel, directory: Path) -> Checkpoint:
    names = (SOURCE_TOKENIZER_FILE, TARGET_TOKENIZER_FILE)
    source, target = (directory / name for name in names)
    present = [source.exists(), target.exists()]
    if not any(present):
        return Checkpoint(model, None)
    if not all(present):
        raise DragomanError(
            f"{directory}: expected both {' and '.join(names)}, or neither, found one"
        )
    config = model.config
    read_library_file(source, config.source_vocab_size or config.target_vocab_size)
    read_library_file(target, config.target_vocab_size)
    return Checkpoint(model, TokenizerFiles(source, target))


WITH_ADAPTERS: tuple[FormatName, ...] = ("Hugging Face", "sentence-transformers")
READERS: Mapping[FormatName, Callable[[Path, Values, Sequence[AdapterConfig]], Checkpoint]] = {
    "Dragoman": lambda directory, values, _: _with_tokenizers(
        load_checkpoint(directory, values), directory
    ),
    "Hugging Face": read_hugging_face,
    "sentence-transformers": lambda directory, _, adapters: read_sentence_transformers(
        directory, tokenizer_kinds(), adapters
    ),
    "CTranslate2": lambda directory, values, _: read_ctranslate2(directory, values),
    "Marian": lambda directory, values, _: read_marian(directory),
    "state dictionary": lambda directory, values, _: _with_tokenizers(
        STATE_DICT_READERS[values["model_type"]](directory, values), directory
    ),
}
"""Readers by format: directory, fields of its `config.json` or {}, and adapters -> contents."""


def _set_alignment_heads(model: ReferenceModel, recipe: Recipe | None) -> None:
    layer = None if recipe is None else recipe.alignment_layer
    if layer is None or not isinstance(model, Transformer) or layer >= model.config.decoder_layers:
        return
    heads = tuple((layer, head) for head in range(model.config.num_heads))
    model.generation = dataclasses.replace(model.generation, alignment_heads=heads)


def shorten_window(model: ReferenceModel, seconds: float) -> float:
    """Shorten the window of a speech model's encoder; return the seconds that it was trained on."""
    audio = audio_features(model.config)
    if audio is None or not isinstance(model, Transformer):
        raise DragomanError("audio_window: expected a speech model, found another one")
    config, longest = model.config, audio.chunk_seconds
    step = longest / config.max_source_positions
    positions = round(seconds / step)
    if not (0 < seconds <= longest and math.isclose(positions * step, seconds)):
        raise DragomanError(
            f"audio_window: expected seconds up to {longest:g}, in steps of {step:g}, found "
            f"{seconds:g}"
        )
    model.shorten_window(positions)
    return longest


def _recipe(directory: Path) -> tuple[Recipe | None, list[str]]:
    path = directory / RECIPE_FILE
    if not path.exists():
        return None, []
    expected = f"{path}: expected a JSON object that names a recipe"
    try:
        record = read_json(path)
        recipe, metrics = RECIPES.get(record["recipe"]), record.get("metrics", {})
        return recipe, [str(name) for name in metrics]
    except FileError as error:
        raise DragomanError(f"{expected}: {error.problem}") from error
    except (AttributeError, KeyError, TypeError) as error:
        raise DragomanError(expected) from error
