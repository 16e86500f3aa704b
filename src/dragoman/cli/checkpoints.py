"""What `export`, `build` and `verify` share: a checkpoint and what lies beside its weights."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from dragoman import DragomanError
from dragoman.benchmarks.parity import ParityInputs, random_inputs
from dragoman.export import TokenizerFiles, log_mel_of
from dragoman.export.families.hugging_face import load_hugging_face, read_json
from dragoman.export.tokenizers import find_tokenizers
from dragoman.export.tokenizers.reading import read_library_file
from dragoman.reference_model import Transformer, load_checkpoint
from dragoman.reference_model.checkpoint import CONFIG_FILE
from dragoman.reference_model.pretrained import find_checkpoint
from dragoman.reference_model.recipes import RECIPES, Recipe, read_examples
from dragoman.reference_model.recipes.recipe import (
    HELD_OUT_FILE,
    RECIPE_FILE,
    SOURCE_TOKENIZER_FILE,
    TARGET_TOKENIZER_FILE,
)
from dragoman.runtime.audio import LogMel
from dragoman.runtime.tokenizer import TextCodec

from .recordings import recordings, windows
from .texts import source_tokens


@dataclass(frozen=True)
class Checkpoint:
    directory: Path
    model: Transformer
    tokenizers: TokenizerFiles | None
    recipe: Recipe | None

    @property
    def name(self) -> str:
        return self.recipe.name if self.recipe else self.directory.resolve().name


def open_checkpoint(name_or_path: str) -> Checkpoint:
    directory = find_checkpoint(name_or_path)
    if _is_foreign(directory):
        model, values = load_hugging_face(directory), read_json(directory / CONFIG_FILE)
        found = find_tokenizers(directory, values["model_type"], values)
        return Checkpoint(directory, model, found, None)
    model = load_checkpoint(directory)
    names = (SOURCE_TOKENIZER_FILE, TARGET_TOKENIZER_FILE)
    present = [(directory / name).is_file() for name in names]
    if any(present) and not all(present):
        raise DragomanError(
            f"{directory}: expected both {' and '.join(names)}, or neither, found one"
        )
    files = None
    if all(present):
        files = TokenizerFiles(directory / names[0], directory / names[1])
        target_size = model.config.target_vocab_size
        read_library_file(directory / names[0], model.config.source_vocab_size or target_size)
        read_library_file(directory / names[1], target_size)
    return Checkpoint(directory, model, files, _recipe(directory))


def parity_inputs(checkpoint: Checkpoint, file: Path | None, limit: int | None) -> ParityInputs:
    """The inputs to verify on: a file's lines, of a speech model the windows of audio files, else
    the checkpoint's held-out data, else random.

    Raises:
        DragomanError: the file cannot be used with this checkpoint.
    """
    log_mel = log_mel_of(checkpoint.model.config)
    if file is not None and log_mel is not None:
        return _windows(file, log_mel, limit)
    if file is not None and checkpoint.tokenizers is None:
        raise DragomanError(
            f"{file}: texts need a checkpoint with tokenizers, found none in {checkpoint.directory}"
        )
    if file is None and (checkpoint.directory / HELD_OUT_FILE).is_file():
        file = checkpoint.directory / HELD_OUT_FILE
    if file is None or checkpoint.tokenizers is None:
        return random_inputs(checkpoint.model, limit or 64)
    examples = read_examples(file)
    if not examples:
        raise DragomanError(f"{file}: expected at least one line, found none")
    described = f"{file.name}, {len(examples)} lines"
    if limit is not None and limit < len(examples):
        stride = len(examples) / limit
        examples = [examples[int(i * stride)] for i in range(limit)]
        described += f", {limit} of them spread evenly"
    codec = _codec(checkpoint.tokenizers)
    longest = checkpoint.model.config.max_source_positions
    scored = checkpoint.recipe is not None and all(e.references for e in examples)
    return ParityInputs(
        described,
        [source_tokens(codec, example.source, longest, file) for example in examples],
        [example.source for example in examples],
        examples if scored else None,
        checkpoint.recipe if scored else None,
    )


def _windows(place: Path, log_mel: LogMel, limit: int | None) -> ParityInputs:
    files = recordings(place)
    sources = windows(files, log_mel)
    described = f"{place.name}, {len(files)} files, {len(sources)} windows"
    if limit is not None and limit < len(sources):
        sources = sources[:limit]
        described += f", the first {limit} of them"
    return ParityInputs(described, sources)


def _is_foreign(directory: Path) -> bool:
    """Whether it is of Hugging Face, where a configuration names its family."""
    try:
        values = json.loads((directory / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False  # `load_checkpoint` says what is wrong
    return isinstance(values, dict) and "model_type" in values


def _codec(files: TokenizerFiles) -> TextCodec:
    """That of the bundle, before there is one."""
    with tempfile.TemporaryDirectory() as written:
        return TextCodec.of(files.write(Path(written)), Path(written), files.languages)


def _recipe(directory: Path) -> Recipe | None:
    path = directory / RECIPE_FILE
    if not path.is_file():
        return None
    try:
        return RECIPES.get(json.loads(path.read_text(encoding="utf-8"))["recipe"])
    except (ValueError, KeyError, TypeError) as error:
        raise DragomanError(f"{path}: expected a JSON object that names a recipe") from error
