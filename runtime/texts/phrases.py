"""Resolves `prefix`, `must_contain` and `must_not_contain`, texts or token ids, for decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.errors import shown
from dragoman.settings.generation import GenerationOptions, Phrase

from ..decoding.constrained_beam_search import Tokenizations
from ..decoding.logits_processors import NoBadWords, Prohibition, Row
from ..decoding.results import RejectedError
from ..format.manifest import Manifest
from .surfaces import INCOMPLETE, ForbiddenTexts
from .tokenizer import TextCodec, TokenizerError, TooLongError, UnknownSymbolsError


@dataclass(frozen=True)
class Phrases:
    """The options `prefix`, `must_contain` and `must_not_contain` for a model."""

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
        """Resolve the options of a call; `prompt` comes before the output.

        Raises:
            RejectedError: a phrase is empty, is not reproduced by the tokenizer, contains one of
                `must_not_contain`, or has unknown symbols or ids or an end token.
        """
        prohibitions = _prohibitions(options, manifest, codec, len(prompt))

        def allowed(tokens: Sequence[int]) -> bool:
            row = Row((), list(prompt))
            for token in tokens:
                if any(prohibition.forbids(row, token) for prohibition in prohibitions):
                    return False
                row.tokens.append(token)
            return True

        prefix: Sequence[int] = ()
        if options.prefix is not None:
            (prefix,) = _ways("prefix", options.prefix, [""], options, manifest, codec)
            if not allowed(prefix):
                raise _contradiction("prefix", options.prefix)
        required = []
        for phrase in options.must_contain:
            # A word may have different tokens at the beginning of a text and after a space.
            ways = _ways("must_contain", phrase, [" ", ""], options, manifest, codec)
            required.append([way for way in ways if allowed(way)])
            if not required[-1]:
                raise _contradiction("must_contain", phrase)
        return cls(prefix, required, prohibitions)


def _prohibitions(
    options: GenerationOptions, manifest: Manifest, codec: TextCodec | None, begin: int
) -> list[Prohibition]:
    option, phrases = "must_not_contain", options.must_not_contain
    for phrase in phrases:
        if not phrase or (isinstance(phrase, str) and INCOMPLETE in phrase):
            raise RejectedError(f"{option}: expected phrases, found {shown(phrase)}")
    pretokenized = manifest.tokenizers is not None and manifest.tokenizers.pretokenized
    texts = [phrase for phrase in phrases if isinstance(phrase, str) and not pretokenized]
    ids = [
        _ways(option, phrase, [""], options, manifest, codec)[0]
        for phrase in phrases
        if pretokenized or not isinstance(phrase, str)
    ]
    found: list[Prohibition] = [NoBadWords(ids)] if ids else []
    if texts:
        codec, vocabulary = _needed(option, codec), manifest.model.target_vocab_size
        special = {
            token: content
            for token, content in codec.special_targets.items()
            if token < vocabulary and token not in manifest.end_tokens
        }
        shown_tokens = frozenset(() if options.skip_special_tokens else special)
        try:
            surfaces = codec.surfaces(vocabulary, shown_tokens)
            written = sorted(set().union(*map(codec.written, texts)))
        except (TokenizerError, ValueError) as error:
            raise RejectedError(f"{option}: {error}") from error
        named = [token for token, content in special.items() if content in texts]
        found.append(ForbiddenTexts(written, surfaces, begin, named))
    return found


def _ways(
    option: str,
    phrase: Phrase,
    before: Sequence[str],
    options: GenerationOptions,
    manifest: Manifest,
    codec: TextCodec | None,
) -> list[tuple[int, ...]]:
    if isinstance(phrase, str):
        ways = [
            _encoded(option, phrase.strip(), space, options, manifest, codec) for space in before
        ]
    else:
        ways = [_checked(option, phrase, manifest)]
    if not all(ways):
        raise RejectedError(f"{option}: expected at least one token, found {shown(phrase)}")
    return list(dict.fromkeys(ways))


def _encoded(
    option: str,
    text: str,
    before: str,
    options: GenerationOptions,
    manifest: Manifest,
    codec: TextCodec | None,
) -> tuple[int, ...]:
    codec = _needed(option, codec)
    if not text:
        return ()
    try:
        found = codec.encode_target(
            before + text,
            most=manifest.model.max_target_positions,
            split_special_tokens=bool(options.split_special_tokens),
        )
    except (UnknownSymbolsError, TooLongError) as error:
        raise RejectedError(f"{option}: {error}, found {shown(text)}") from error
    written = codec.decode(found.tokens, skip_special_tokens=False).strip()
    # Tokenizers differ in the spaces that they write around special tokens.
    special = any(token in codec.special_targets for token in found.tokens)
    if "".join(written.split()) != "".join(text.split()) if special else written != text:
        # Show all spaces, which may be the only difference.
        raise RejectedError(
            f"{option}: expected a text as this model writes it, found {shown(text)}, which it "
            f"writes {shown(written)}"
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
            raise RejectedError(
                f"{option}: expected token ids in [0, {vocabulary}), found {shown(token)}"
            )
        if token in manifest.end_tokens:
            raise RejectedError(f"{option}: expected no end token, found {shown(token)}")
    return tokens
