"""Files of texts, and the tokens they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dragoman import DragomanError
from dragoman.reference_model.recipes import read_examples
from dragoman.runtime import Bundle, Languages
from dragoman.runtime.decoding.batching import Encodable
from dragoman.runtime.texts.tokenizer import TextCodec, UnknownSymbolsError

from .recordings import recordings, windows


def calibration_sources(bundle: Bundle, file: Path) -> Sequence[Encodable]:
    """The tokens of each line, references apart; of a speech model, windows of audio files.

    Raises:
        DragomanError: the bundle has no tokenizers, or a line is no input of the model; names it.
    """
    if bundle.manifest.audio is not None:
        return windows(recordings(file), bundle.manifest.audio)
    tokenizers = bundle.manifest.tokenizers
    if tokenizers is None:
        raise DragomanError(f"{file}: texts need a model with tokenizers, found none")
    examples = read_examples(file)
    if not examples:
        raise DragomanError(f"{file}: expected at least one line, found none")
    codec = TextCodec.of(tokenizers, bundle.directory, bundle.manifest.languages)
    longest = bundle.manifest.model.max_source_positions
    language = source_language(bundle.manifest.languages)
    return [source_tokens(codec, example.source, longest, file, language) for example in examples]


def source_language(languages: Languages | None) -> str | None:
    """What texts are taken to be in where nobody says it: the model's default, else English, else
    the first of its languages. What is compared is numbers, not translations."""
    if languages is None:
        return None
    english = (code for code in sorted(languages.tokens) if code.startswith("en"))
    return languages.default_source or next(english, None) or min(languages.tokens)


def source_tokens(
    codec: TextCodec, text: str, longest: int, file: Path, language: str | None = None
) -> list[int]:
    """The tokens of a line of a file.

    Raises:
        DragomanError: it has symbols that the model does not know, none, or too many.
    """
    place = f"{file}: {text[:40]!r}"
    try:
        tokens = codec.encode(text, language)
    except UnknownSymbolsError as error:
        raise DragomanError(f"{place}: {error}") from error
    if not 1 <= len(tokens) <= longest:
        raise DragomanError(f"{place}: expected 1 to {longest} tokens, found {len(tokens)}")
    return tokens
