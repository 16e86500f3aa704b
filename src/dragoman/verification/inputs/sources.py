"""Reads sources from files of texts and of audio, for parity and for calibration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError, shown
from dragoman.reference_model.recipes import read_lines
from dragoman.runtime.audio import AudioError, LogMel, read_audio
from dragoman.runtime.decoding.request import EncoderInput
from dragoman.runtime.decoding.results import RejectedError
from dragoman.runtime.encoding.front_end import LineSource, source_of_line
from dragoman.runtime.encoding.tokenizer import InputTokenizer, Tokenized
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.texts import Languages
from dragoman.runtime.texts.tokenizer import TextCodec, TooLongError, UnknownSymbolsError
from dragoman.settings.head import Head

from .items import recording_items, text_items


class Sources(NamedTuple):
    """Sources to calibrate on."""

    encodable: Sequence[EncoderInput]
    """Token ids, or features."""
    types: Sequence[Sequence[int]] | None = None
    """The segments of an encoder-only model's tokens; None: they are all 0."""


class EncoderLine(NamedTuple):
    """A line of a file as an encoder-only model reads it."""

    source: LineSource
    tokens: Tokenized

    @property
    def query(self) -> str:
        """The first text of a pair; "" for one text."""
        return "" if isinstance(self.source, str) else self.source[0]


def calibration_sources(bundle: Bundle, file: Path) -> Sources:
    """Read the sources of a calibration from a file, without references.

    They are tokens of lines, for an encoder-only model as `dragoman encode` reads them, or windows
    of audio.
    """
    manifest = bundle.manifest
    if manifest.audio is not None:
        files, log_mel = recording_items(file), LogMel.of(manifest.audio)
        return Sources([w for item in files for w in windows_of(Path(item.source), log_mel)])
    if manifest.tokenizers is None:
        raise DragomanError(f"{file}: texts need a model with tokenizers, found none")
    longest = manifest.model.input_positions
    if manifest.head is not None and manifest.tokenizers.source is not None:
        path = bundle.directory / manifest.tokenizers.source
        tokenizer = InputTokenizer(path, longest, manifest.head, manifest.tokenizers.prompts)
        lines = encoder_lines(tokenizer, manifest.head, numbered_lines(file), file)
        return Sources([line.tokens.ids for line in lines], [line.tokens.types for line in lines])
    items = text_items(file)
    codec = TextCodec.of(manifest.tokenizers, bundle.directory, manifest.languages)
    language = assumed_language(manifest.languages)
    return Sources(
        [source_tokens(codec, str(item.source), longest, file, language) for item in items]
    )


def numbered_lines(file: Path) -> list[tuple[int, str]]:
    """Read the lines of a file of texts with their numbers, from 1."""
    lines = list(enumerate(read_lines(file), start=1))
    if not lines:
        raise DragomanError(f"{file}: expected at least one line, found none")
    for number, line in lines:
        if not line:
            raise DragomanError(f"{file}, line {number}: expected a text, found none")
    return lines


def encoder_lines(
    tokenizer: InputTokenizer, head: Head, lines: Sequence[tuple[int, str]], file: Path
) -> list[EncoderLine]:
    """Tokenize lines of a file for an encoder-only model, as `dragoman encode` does."""
    found = []
    for number, line in lines:
        try:
            source = source_of_line(line, head)
            texts = (source,) if isinstance(source, str) else source
            found.append(EncoderLine(source, tokenizer.encode(*texts)))
        except RejectedError as error:
            raise DragomanError(f"{file}, line {number}: {error}") from error
    return found


def assumed_language(languages: Languages | None) -> str | None:
    """Choose the language that texts are assumed to be in: the default, English, or the first."""
    if languages is None:
        return None
    english = (code for code in sorted(languages.tokens) if code.startswith("en"))
    return languages.default_source or next(english, None) or min(languages.tokens)


def source_tokens(
    codec: TextCodec, text: str, longest: int, file: Path, language: str | None = None
) -> list[int]:
    """Tokenize a line of a file."""
    origin = f"{file}: {shown(text)}"
    try:
        tokens = codec.encode(text, language, most=longest)
    except UnknownSymbolsError as error:
        raise DragomanError(f"{origin}: {error}") from error
    except TooLongError as error:
        raise DragomanError(f"{origin}: expected 1 to {longest} tokens, found {error}") from error
    if not 1 <= len(tokens) <= longest:
        raise DragomanError(f"{origin}: expected 1 to {longest} tokens, found {len(tokens)}")
    return tokens


def windows_of(file: Path, log_mel: LogMel) -> list[NDArray[np.float32]]:
    """Compute the features of all consecutive windows of a file: [bins, frames] each."""
    try:
        signal = read_audio(file, log_mel.sampling_rate, strict=True)
    except AudioError as error:
        raise DragomanError(str(error)) from error
    starts = range(0, len(signal), log_mel.samples)
    return [log_mel.chunk(signal[i : i + log_mel.samples]) for i in starts]
