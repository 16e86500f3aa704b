"""Resolves `prefix`, `must_contain` and `must_not_contain`, texts or token ids, for decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.settings.fields import shown
from dragoman.settings.generation import GenerationOptions, Phrase

from ..decoding.constrained_beam_search import Tokenizations
from ..decoding.logits_processors import NoBadWords, Prohibition, Row
from ..decoding.results import RejectedError
from ..format.manifest import Manifest
from .surfaces import INCOMPLETE, ForbiddenTexts
from .tokenizer import TextCodec, TokenizerError, TooLongError, UnknownSymbolsError


@dataclass(frozen=True)
class Phrases:
    """The options `prefix`, `must_contain` and `must_not_contain` for a model.

    Attributes:
        prefix: tokens that the output begins with; empty without a prefix
        required: phrases that the output must contain
        prohibitions: phrases that the output must not contain
    """

    prefix: Sequence[int]
    required: Sequence[Tokenizations]
    prohibitions: Sequence[Prohibition]

    @classmethod
    def of(
        cls,
        options: GenerationOptions,
        manifest: Manifest,
        codec: TextCodec | None,
        prompt: Sequence[int],
    ) -> Phrases:
        """Resolve the options of a call.

        Args:
            prompt: decoder tokens before the output

        Raises:
            RejectedError: a phrase is empty, has unknown symbols or ids or an end token, is not
                reproduced by the tokenizer, or contains a phrase of `must_not_contain`; or the
                bundle has no tokenizers for a text.
        """
        prohibitions = _prohibitions(options.must_not_contain, manifest, codec, len(prompt))

        def allowed(tokens: Sequence[int]) -> bool:
            row = Row((), list(prompt))
            for token in tokens:
                if any(prohibition.forbids(row, token) for prohibition in prohibitions):
                    return False
                row.tokens.append(token)
            return True

        prefix: Sequence[int] = ()
        if options.prefix is not None:
            (prefix,) = _ways("prefix", options.prefix, [""], manifest, codec)
            if not allowed(prefix):
                raise _contradiction("prefix", options.prefix)
        required = []
        for phrase in options.must_contain:
            # A word may have different tokens at the beginning of a text and after a space.
            ways = _ways("must_contain", phrase, [" ", ""], manifest, codec)
            required.append([way for way in ways if allowed(way)])
            if not required[-1]:
                raise _contradiction("must_contain", phrase)
        return cls(prefix, required, prohibitions)


def _prohibitions(
    phrases: Sequence[Phrase], manifest: Manifest, codec: TextCodec | None, begin: int
) -> list[Prohibition]:
    """Return rules that exclude phrases from an output that starts at decoder position `begin`."""
    option = "must_not_contain"
    for phrase in phrases:
        if not phrase or (isinstance(phrase, str) and INCOMPLETE in phrase):
            raise RejectedError(f"{option}: expected phrases, found {shown(phrase)}")
    texts = [phrase for phrase in phrases if isinstance(phrase, str)]
    ids = [_checked(option, phrase, manifest) for phrase in phrases if not isinstance(phrase, str)]
    found: list[Prohibition] = [NoBadWords(ids)] if ids else []
    if texts:
        try:
            surfaces = _needed(option, codec).surfaces(manifest.model.target_vocab_size)
        except TokenizerError as error:
            raise RejectedError(f"{option}: {error}") from error
        found.append(ForbiddenTexts(texts, surfaces, begin))
    return found


def _ways(
    option: str,
    phrase: Phrase,
    before: Sequence[str],
    manifest: Manifest,
    codec: TextCodec | None,
) -> list[tuple[int, ...]]:
    """Return the distinct token sequences of a phrase.

    Args:
        before: texts that may precede the phrase
    """
    if isinstance(phrase, str):
        ways = [_encoded(option, phrase.strip(), space, manifest, codec) for space in before]
    else:
        ways = [_checked(option, phrase, manifest)]
    if not all(ways):
        raise RejectedError(f"{option}: expected at least one token, found {shown(phrase)}")
    return list(dict.fromkeys(ways))


def _encoded(
    option: str, text: str, before: str, manifest: Manifest, codec: TextCodec | None
) -> tuple[int, ...]:
    codec = _needed(option, codec)
    if not text:
        return ()
    try:
        found = codec.encode_target(before + text, most=manifest.model.max_target_positions)
    except (UnknownSymbolsError, TooLongError) as error:
        raise RejectedError(f"{option}: {error}, found {shown(text)}") from error
    written = codec.decode(found.tokens).strip()
    if written != text:
        # Show all spaces, which may be the only difference.
        raise RejectedError(
            f"{option}: expected a text as this model writes it, found {text[:60]!r}, which it "
            f"writes {written[:60]!r}"
        )
    return _checked(option, found.tokens, manifest)


def _needed(option: str, codec: TextCodec | None) -> TextCodec:
    if codec is None:
        raise RejectedError(f"{option}: this bundle has no tokenizers: expected token ids")
    return codec


def _contradiction(option: str, phrase: Phrase) -> RejectedError:
    return RejectedError(f"{option}: {shown(phrase)} has a phrase of must_not_contain")


def _checked(option: str, ids: Phrase, manifest: Manifest) -> tuple[int, ...]:
    vocabulary = manifest.model.target_vocab_size
    tokens = tuple(int(token) for token in ids)
    for token in tokens:
        if not 0 <= token < vocabulary:
            raise RejectedError(f"{option}: expected token ids in [0, {vocabulary}), found {token}")
        if token in manifest.end_tokens:
            raise RejectedError(f"{option}: expected no end token, found {token}")
    return tokens
