"""Prefixes and phrases: texts or token ids -> target token ids."""

from __future__ import annotations

from ..decoding.options import Phrase, shown
from ..decoding.rejection import RejectedError
from ..format.manifest import Manifest
from .tokenizer import TextCodec, TooLongError, UnknownSymbolsError


def prefix_tokens(prefix: Phrase, manifest: Manifest, codec: TextCodec | None) -> tuple[int, ...]:
    """The tokens that an output begins with.

    Raises:
        RejectedError: it has symbols or ids that the model does not know, contains an end token, or
            is a text and the bundle has no tokenizers.
    """
    if isinstance(prefix, str):
        return _encoded("prefix", prefix, manifest, codec)
    return _checked("prefix", prefix, manifest)


def phrase_tokens(
    option: str, phrase: Phrase, manifest: Manifest, codec: TextCodec | None
) -> list[tuple[int, ...]]:
    """The token sequences that a phrase may be: at the beginning of a text, and after a space.

    Args:
        option: its name, for messages

    Raises:
        RejectedError: as for `prefix_tokens`, or it is empty.
    """
    if isinstance(phrase, str):
        ways = [_encoded(option, text, manifest, codec) for text in (f" {phrase}", phrase)]
    else:
        ways = [_checked(option, phrase, manifest)]
    found = [way for way in dict.fromkeys(ways) if way]
    if not found:
        raise RejectedError(f"{option}: expected phrases, found {shown(phrase)}")
    return found


def _encoded(
    option: str, text: str, manifest: Manifest, codec: TextCodec | None
) -> tuple[int, ...]:
    if codec is None:
        raise RejectedError(f"{option}: this bundle has no tokenizers: expected token ids")
    try:
        return tuple(codec.encode_target(text, most=manifest.model.max_target_positions).tokens)
    except (UnknownSymbolsError, TooLongError) as error:
        raise RejectedError(f"{option}: {error}, found {shown(text)}") from error


def _checked(option: str, ids: Phrase, manifest: Manifest) -> tuple[int, ...]:
    vocabulary = manifest.model.target_vocab_size
    tokens = tuple(int(token) for token in ids)
    for token in tokens:
        if not 0 <= token < vocabulary:
            raise RejectedError(f"{option}: expected token ids in [0, {vocabulary}), found {token}")
        if token in manifest.end_tokens:
            raise RejectedError(f"{option}: expected no end token, found {token}")
    return tokens
