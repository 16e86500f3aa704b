"""What a bundle and its oracle are compared on."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from dragoman.errors import DragomanError
from dragoman.export.model_description import audio_features
from dragoman.export.model_description import head as described_head
from dragoman.export.opened_checkpoint import OpenedCheckpoint
from dragoman.export.tokenizers import TokenizerFiles
from dragoman.optimize.random_sound import random_sound
from dragoman.reference_model import ReferenceModel
from dragoman.reference_model.recipes import Example, Recipe, read_examples
from dragoman.reference_model.recipes.recipe import HELD_OUT_FILE
from dragoman.runtime.audio import LogMel
from dragoman.runtime.decoding.batching import Encodable
from dragoman.runtime.encoding.tokenizer import InputTokenizer
from dragoman.runtime.format.head import Head
from dragoman.runtime.format.writing import ScratchWriter
from dragoman.runtime.texts.tokenizer import TextCodec

from .references import References, read_references
from .sources import (
    EncoderLine,
    assumed_language,
    encoder_lines,
    numbered_lines,
    recordings,
    source_tokens,
    windows,
)

Item = TypeVar("Item")

RANDOM_SOURCES = 64
RANDOM_WINDOWS = 4
"""Windows are half a minute long."""
LONGEST_RANDOM = 48


@dataclass(frozen=True)
class ParityInputs:
    """What to compare on.

    Attributes:
        description: for the record
        sources: source token ids, at least one each, or features [mel bins, frames]
        texts: the texts of the sources, which the bundle's own tokenizer must turn into them
        lines: the same of an encoder alone, whose texts may be pairs, with all that its tokenizer
            says of them
        examples, recipe: where the sources come from, if there are references to score
        source_language: of the texts, for a multilingual model
        references: sources with targets that are right, whose probability is compared
        random: whether the sources are random, and say nothing about quality
    """

    description: str
    sources: Sequence[Encodable]
    texts: list[str] | None = None
    examples: list[Example] | None = None
    recipe: Recipe | None = None
    source_language: str | None = None
    references: References | None = None
    random: bool = False
    lines: Sequence[EncoderLine] | None = None


def inputs_for(
    checkpoint: OpenedCheckpoint,
    file: Path | None = None,
    limit: int | None = None,
    references: Path | None = None,
) -> ParityInputs:
    """The lines of a file, or the windows of audio files for a speech model; without a file the
    checkpoint's held-out data, or random inputs if there is none.

    Args:
        limit: the most inputs, and the most references; None: all
        references: a file whose lines are a source, a tab and a reference; None: the references
            after tabs in a file of texts, if every line has one

    Raises:
        DragomanError: a file cannot be used with this checkpoint.
    """
    inputs = _inputs(checkpoint, file, limit)
    if references is None:
        return inputs
    read = read_references(
        references,
        audio=checkpoint.model.config.takes_audio,
        ids=checkpoint.tokenizers is None,
    )
    languages = checkpoint.tokenizers.languages if checkpoint.tokenizers else None
    read = dataclasses.replace(read, source_language=assumed_language(languages))
    return dataclasses.replace(inputs, references=read.spread(limit))


def _inputs(checkpoint: OpenedCheckpoint, file: Path | None, limit: int | None) -> ParityInputs:
    features = audio_features(checkpoint.model.config)
    if file is not None and features is not None:
        return _windows(file, LogMel.of(features), limit)
    if file is not None and checkpoint.tokenizers is None:
        raise DragomanError(
            f"{file}: texts need a checkpoint with tokenizers, found none in {checkpoint.directory}"
        )
    if file is None and (checkpoint.directory / HELD_OUT_FILE).is_file():
        file = checkpoint.directory / HELD_OUT_FILE
    if file is None or checkpoint.tokenizers is None:
        return random_inputs(checkpoint.model, limit or RANDOM_SOURCES)
    head = described_head(checkpoint.model.config)
    if head is not None:
        return _lines(checkpoint, checkpoint.tokenizers, head, file, limit)
    return _texts(checkpoint, checkpoint.tokenizers, file, limit)


def random_inputs(
    model: ReferenceModel, count: int = RANDOM_SOURCES, *, seed: int = 0
) -> ParityInputs:
    """Uniformly random tokens in ragged lengths from 1, or random sound, for models that come
    without inputs."""
    generator = np.random.default_rng(seed)
    config = model.config
    features = audio_features(config)
    if features is not None:
        log_mel = LogMel.of(features)
        count = min(count, RANDOM_WINDOWS)
        sounds: list[Encodable] = [
            log_mel.chunk(random_sound(generator, log_mel.sampling_rate, log_mel.samples))
            for _ in range(count)
        ]
        return ParityInputs(f"{count} windows of random sound (seed {seed})", sounds, random=True)
    vocabulary, positions = config.source_vocab_size or 0, config.max_source_positions
    if not config.has_encoder:  # what is continued
        vocabulary, positions = config.target_vocab_size, config.max_target_positions // 2
    longest = max(1, min(LONGEST_RANDOM, positions))
    lengths = [1, longest, *generator.integers(1, longest + 1, size=max(0, count - 2))][:count]
    tokens = [generator.integers(0, vocabulary, size=n).tolist() for n in lengths]
    return ParityInputs(f"{count} random sources (seed {seed})", tokens, random=True)


def _texts(
    checkpoint: OpenedCheckpoint, tokenizers: TokenizerFiles, file: Path, limit: int | None
) -> ParityInputs:
    examples = read_examples(file)
    if not examples:
        raise DragomanError(f"{file}: expected at least one line, found none")
    references = None
    if all(example.references for example in examples):
        references = References.of(examples, file.name)
    description, examples = _spread(file, examples, limit)
    codec = _codec(tokenizers)
    language = assumed_language(tokenizers.languages)
    if language is not None:
        description += f", assumed to be {language}"
    if references is not None:
        references = dataclasses.replace(references, source_language=language).spread(limit)
    config = checkpoint.model.config
    # What is continued must leave room for an output.
    longest = config.max_source_positions or config.max_target_positions // 2
    scored = checkpoint.recipe is not None and all(e.references for e in examples)
    return ParityInputs(
        description,
        [source_tokens(codec, example.source, longest, file, language) for example in examples],
        [example.source for example in examples],
        examples if scored else None,
        checkpoint.recipe if scored else None,
        language,
        references,
    )


def _lines(
    checkpoint: OpenedCheckpoint,
    tokenizers: TokenizerFiles,
    head: Head,
    file: Path,
    limit: int | None,
) -> ParityInputs:
    """Of an encoder alone, which takes no references: tabs stand between the texts of pairs."""
    description, numbered = _spread(file, numbered_lines(file), limit)
    with tempfile.TemporaryDirectory() as directory:
        written = tokenizers.write(ScratchWriter(Path(directory)))
        assert written.source is not None
        longest = checkpoint.model.config.max_source_positions
        tokenizer = InputTokenizer.of(Path(directory) / written.source, longest, head)
    lines = encoder_lines(tokenizer, head, numbered, file)
    return ParityInputs(description, [line.tokens.ids for line in lines], lines=lines)


def _spread(file: Path, lines: list[Item], limit: int | None) -> tuple[str, list[Item]]:
    """What is compared on, for the record, and at most so many lines of it."""
    description = f"{file.name}, {len(lines)} lines"
    if limit is None or limit >= len(lines):
        return description, lines
    stride = len(lines) / limit
    chosen = [lines[int(i * stride)] for i in range(limit)]
    return f"{description}, {limit} of them spread evenly", chosen


def _windows(path: Path, log_mel: LogMel, limit: int | None) -> ParityInputs:
    files = recordings(path)
    sources = windows(files, log_mel)
    description = f"{path.name}, {len(files)} files, {len(sources)} windows"
    if limit is not None and limit < len(sources):
        sources = sources[:limit]
        description += f", the first {limit} of them"
    return ParityInputs(description, sources)


def _codec(tokenizers: TokenizerFiles) -> TextCodec:
    """The codec of the bundle to be. Files are written only if the checkpoint's own do not do."""
    source, target = tokenizers.source, tokenizers.target
    plain = tokenizers.template is None and tokenizers.languages is None
    if plain and isinstance(source, Path) and isinstance(target, Path):
        return TextCodec(source, target)
    with tempfile.TemporaryDirectory() as directory:
        written = tokenizers.write(ScratchWriter(Path(directory)))
        return TextCodec.of(written, Path(directory), tokenizers.languages)
