"""What `export`, `build` and `verify` share: a checkpoint and what lies beside its weights."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from dragoman import DragomanError
from dragoman.benchmarks.parity import ParityInputs, random_inputs
from dragoman.export import TokenizerFiles, log_mel_of
from dragoman.export.checkpoints import read_checkpoint
from dragoman.reference_model import Transformer
from dragoman.reference_model.pretrained import find_checkpoint
from dragoman.reference_model.recipes import RECIPES, Recipe, read_examples
from dragoman.reference_model.recipes.recipe import (
    HELD_OUT_FILE,
    RECIPE_FILE,
)
from dragoman.runtime.audio import LogMel
from dragoman.runtime.texts.tokenizer import TextCodec

from .recordings import recordings, windows
from .texts import source_language, source_tokens


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
    opened = read_checkpoint(directory)
    return Checkpoint(directory, opened.model, opened.tokenizers, _recipe(directory))


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
    language = source_language(checkpoint.tokenizers.languages)
    if language is not None:
        described += f", taken as {language}"
    longest = checkpoint.model.config.max_source_positions
    scored = checkpoint.recipe is not None and all(e.references for e in examples)
    return ParityInputs(
        described,
        [source_tokens(codec, example.source, longest, file, language) for example in examples],
        [example.source for example in examples],
        examples if scored else None,
        checkpoint.recipe if scored else None,
        language,
    )


def _windows(place: Path, log_mel: LogMel, limit: int | None) -> ParityInputs:
    files = recordings(place)
    sources = windows(files, log_mel)
    described = f"{place.name}, {len(files)} files, {len(sources)} windows"
    if limit is not None and limit < len(sources):
        sources = sources[:limit]
        described += f", the first {limit} of them"
    return ParityInputs(described, sources)


def _codec(files: TokenizerFiles) -> TextCodec:
    """That of the bundle, before there is one. Copies are written only where files are made."""
    source, target = files.source, files.target
    plain = files.template is None and files.languages is None
    if plain and isinstance(source, Path) and isinstance(target, Path):
        return TextCodec(source, target)
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
