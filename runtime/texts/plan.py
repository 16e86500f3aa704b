"""Resolves options of text models, and creates requests.

Languages, end tokens, and the phrases that an output begins with, must or must not contain become
token ids.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError, shown
from dragoman.settings.generation import GenerationOptions, Phrase
from dragoman.settings.generation_settings import GenerationSettings
from dragoman.settings.speech import LanguageOptions, TranscriptionOptions

from ..decoding.constrained_beam_search import ConstrainedBeam, Tokenizations
from ..decoding.logits_processors import NoBadWords, Prohibition, Row
from ..decoding.request import Request, Rules
from ..decoding.results import RejectedError
from ..decoding.search import Strategy
from ..decoding.strategies import GenerationLimits, strategies
from ..format.manifest import Manifest
from ..format.texts import LanguageError
from .shortlist import Shortlist
from .surfaces import INCOMPLETE, ForbiddenTexts
from .tokenizer import TextCodec, TokenizerError, TooLongError, UnknownSymbolsError


@dataclass(frozen=True)
class TextPlan:
    """The options of a call, resolved for a text model."""

    options: GenerationOptions
    limits: GenerationLimits
    strategies: Sequence[Strategy]
    """One strategy, or one for each sample."""
    settings: GenerationSettings
    end_tokens: Sequence[int]
    prompt: Sequence[int]
    """Start token and prompt of the settings; unused for a decoder-only model."""
    phrases: Phrases
    has_encoder: bool = True
    shortlist: Shortlist | None = None
    vocabulary: int = 0

    @classmethod
    def of(
        cls,
        options: GenerationOptions,
        manifest: Manifest,
        codec: TextCodec | None,
        shortlist: Shortlist | None = None,
    ) -> TextPlan:
        """Resolve the options of a call."""
        given = options.given(TranscriptionOptions.__annotations__)
        of_speech = [name for name in given if getattr(options, name) is not False]
        if of_speech:
            raise DragomanError(f"{', '.join(of_speech)}: for speech models, found a text model")
        check_languages(options, manifest)
        check_truncation(options.truncate, manifest)
        manifest = with_rules(manifest, options, codec)
        limits = GenerationLimits.of(options, manifest)
        start, settings = start_of(manifest, options.target_language)
        prompt = (start, *settings.prompt)
        phrases = Phrases.of(options, manifest, codec, prompt)
        return cls(
            options,
            limits,
            strategies(options, manifest, phrases.required),
            settings,
            manifest.end_tokens,
            prompt,
            phrases,
            manifest.model.has_encoder,
            shortlist,
            manifest.model.target_vocab_size,
        )

    @property
    def prefix(self) -> Sequence[int]:
        """A forced first token and the prefix; empty without a prefix."""
        forced, prefix = self.settings.forced_first_token_id, self.phrases.prefix
        return (forced, *prefix) if prefix and forced is not None else prefix

    def request(self, source: list[int]) -> Request:
        """Create the request of a source; a `RejectedError` says that limits leave no room."""
        limit, settings, prefix = self.limits.new_tokens(len(source)), self.settings, self.prefix
        prompt = self.prompt
        if not self.has_encoder:
            prompt, source = (*source, *settings.prompt), []
            # The decoder does not read the last new token.
            limit = min(limit, self.limits.positions + 1 - len(prompt))
            if limit < 1:
                raise RejectedError(
                    f"prompt has {len(prompt)} tokens, expected at most {self.limits.positions}"
                )
        if prefix:
            if len(prefix) >= limit:
                raise RejectedError(
                    f"prefix: expected fewer tokens than the limit of {limit}, found {len(prefix)}"
                )
            settings = dataclasses.replace(
                settings,
                forced_first_token_id=None,
                min_new_tokens=max(0, settings.min_new_tokens - len(prefix)),
            )
        request = Request(
            source=source,
            allowed=self._allowed(source),
            prompt=prompt,
            prefix=prefix,
            rules=Rules.of(
                settings,
                limit=limit - len(prefix),
                end_tokens=self.end_tokens,
                prompt_length=len(prompt) + len(prefix),
                prohibitions=self.phrases.prohibitions,
                alternatives=self.options.alternatives,
            ),
        )
        for strategy in self.strategies:
            if isinstance(strategy, ConstrainedBeam):
                strategy.check(request)
        return request

    def _allowed(self, source: Sequence[int]) -> NDArray[np.int64] | None:
        if self.shortlist is None:
            return None
        if not self.options.shortlist:
            return np.arange(self.vocabulary)
        required = chain.from_iterable(chain.from_iterable(self.phrases.required))
        allowed = self.shortlist.allowed(source, chain(self.end_tokens, required))
        if not len(allowed):
            raise RejectedError(
                "the bundle's shortlist allows no token for this source; shortlist=False "
                "(--no-shortlist) decodes with the whole vocabulary"
            )
        return allowed


def with_rules(manifest: Manifest, options: GenerationOptions, codec: TextCodec | None) -> Manifest:
    """Return a manifest with the rules and end tokens of a call."""
    settings = options.rules(manifest.generation)
    if isinstance(options.end_token_id, tuple):
        ends = [_end_token(token, manifest, codec) for token in options.end_token_id]
        settings = dataclasses.replace(settings, end_token_ids=tuple(dict.fromkeys(ends)))
    return (
        manifest
        if settings == manifest.generation
        else dataclasses.replace(manifest, generation=settings)
    )


def _end_token(token: int | str, manifest: Manifest, codec: TextCodec | None) -> int:
    vocabulary = manifest.model.target_vocab_size
    found = None if isinstance(token, str) else token
    if isinstance(token, str):
        if codec is None:
            raise RejectedError(
                f"end_token_id: this bundle has no tokenizers: expected a token id, found "
                f"{shown(token)}"
            )
        found = codec.target_token(token)
    if found is None or not 0 <= found < vocabulary:
        raise RejectedError(
            f"end_token_id: expected a token of the vocabulary or an id in [0, {vocabulary}), "
            f"found {shown(token)}"
        )
    if found in manifest.generation.suppressed_token_ids:
        raise RejectedError(
            f"end_token_id: expected a token that the model may generate, found {shown(token)}, "
            "which its settings suppress"
        )
    return int(found)


def check_languages(options: LanguageOptions, manifest: Manifest) -> None:
    """Check the languages, and that no option is for speech models, once for all inputs."""
    if (options.language, options.task) != (None, None) or (
        options.timestamps or options.strict_audio
    ):
        raise DragomanError(
            "language, task, timestamps and strict_audio are for speech models; a multilingual "
            "text model takes source_language and target_language"
        )
    languages = manifest.languages
    for side, code in (("source", options.source_language), ("target", options.target_language)):
        if languages is None and code is not None:
            raise LanguageError(
                f"{side}_language: expected none, this model has no languages, found {shown(code)}"
            )
    if languages is not None:
        languages.target_token(options.target_language)
        if options.source_language is not None:
            languages.source_token(options.source_language)


def check_truncation(truncate: bool, manifest: Manifest) -> None:
    """Check that a model has sources to truncate."""
    if truncate and not manifest.model.has_encoder:
        raise DragomanError(
            "truncate: expected a model with an encoder; a decoder-only model continues the end of "
            "its prompt: shorten the prompt"
        )


def start_of(manifest: Manifest, target_language: str | None) -> tuple[int, GenerationSettings]:
    """Return start token and generation settings for a language or the default."""
    start, settings = manifest.model.start_token_id, manifest.generation
    if manifest.languages is None:
        return start, settings
    return manifest.languages.start_of(target_language, start, settings)


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
