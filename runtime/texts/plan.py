"""What a call's options mean for a text model: each source -> requests of the decoding loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dragoman.errors import DragomanError

from ..decoding.constrained import ConstrainedBeam
from ..decoding.limits import GenerationLimits
from ..decoding.options import GenerationOptions, PromptOptions, shown
from ..decoding.rejection import RejectedError
from ..decoding.request import Request, Rules
from ..decoding.search import Strategy
from ..decoding.strategies import strategies
from ..format.generation_settings import GenerationSettings
from ..format.languages import LanguageError
from ..format.manifest import Manifest
from .phrases import Phrases
from .tokenizer import TextCodec


@dataclass(frozen=True)
class TextPlan:
    """Options resolved for a model.

    Attributes:
        strategies: one, or to sample several outputs one for each
        prompt: the start token and the settings' prompt; a decoder alone is given its input instead
        phrases: what the output begins with, must contain and must not contain
    """

    options: GenerationOptions
    limits: GenerationLimits
    strategies: Sequence[Strategy]
    settings: GenerationSettings
    end_tokens: Sequence[int]
    prompt: Sequence[int]
    phrases: Phrases
    has_encoder: bool = True

    @classmethod
    def of(
        cls, options: GenerationOptions, manifest: Manifest, codec: TextCodec | None
    ) -> TextPlan:
        """
        Raises:
            DragomanError: options contradict each other, or are not for this model.
            LanguageError: a language is unknown, missing, or given to a model without languages.
            RejectedError: a prefix or phrase is not one that the model can produce.
        """
        check_languages(options, manifest)
        limits = GenerationLimits.of(options, manifest)
        start, settings = start_of(manifest, options.target_language)
        prompt = (start, *settings.prompt)
        phrases = Phrases.of(options, manifest, codec, prompt)
        return cls(
            options,
            limits,
            strategies(options, manifest, phrases.required),
            settings.with_minimum(options.min_new_tokens),
            manifest.end_tokens,
            prompt,
            phrases,
            manifest.model.has_encoder,
        )

    @property
    def given(self) -> Sequence[int]:
        """What the output begins with: the prefix, after a token that is forced to be the first,
        such as a language; nothing without a prefix.
        """
        forced, prefix = self.settings.forced_first_token_id, self.phrases.prefix
        return (forced, *prefix) if prefix and forced is not None else prefix

    def request(self, source: list[int]) -> Request:
        """
        Raises:
            RejectedError: the limit leaves no room for an output, or for the phrases that it must
                contain.
        """
        limit, settings, given = self.limits.new_tokens(len(source)), self.settings, self.given
        prompt = self.prompt
        if not self.has_encoder:
            prompt, source = (*source, *settings.prompt), []
            # The last new token is not read.
            limit = min(limit, self.limits.positions + 1 - len(prompt))
            if limit < 1:
                raise RejectedError(
                    f"prompt has {len(prompt)} tokens, expected at most {self.limits.positions}"
                )
        if given:
            if len(given) >= limit:
                raise RejectedError(
                    f"prefix: expected fewer tokens than the limit of {limit}, found {len(given)}"
                )
            settings = dataclasses.replace(
                settings,
                forced_first_token_id=None,
                min_new_tokens=max(0, settings.min_new_tokens - len(given)),
            )
        request = Request(
            source=source,
            prompt=prompt,
            given=given,
            rules=Rules.of(
                settings,
                limit=limit - len(given),
                end_tokens=self.end_tokens,
                prompt_length=len(prompt) + len(given),
                prohibitions=self.phrases.prohibitions,
                alternatives=self.options.alternatives,
            ),
        )
        for strategy in self.strategies:
            if isinstance(strategy, ConstrainedBeam):
                strategy.check(request)
        return request


class LanguageOptions(PromptOptions, Protocol):
    """Options of a call that text models and speech models take."""

    @property
    def source_language(self) -> str | None: ...

    @property
    def target_language(self) -> str | None: ...


def check_languages(options: LanguageOptions, manifest: Manifest) -> None:
    """Check that no option is for speech, and the languages. A wrong language is an error of the
    call, not of one of its inputs.

    Raises:
        DragomanError: an option is for speech models.
        LanguageError: a language is unknown, missing, or given to a model without languages.
    """
    if options.language is not None or options.task is not None or options.timestamps:
        raise DragomanError(
            "language, task and timestamps are for speech models; a multilingual text model "
            "takes source_language and target_language"
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


def start_of(manifest: Manifest, target_language: str | None) -> tuple[int, GenerationSettings]:
    """The start token and the generation settings for a target language; None: the default.

    Raises:
        LanguageError: the language is unknown, or None and there is no default.
    """
    start, settings = manifest.model.start_token_id, manifest.generation
    if manifest.languages is None:
        return start, settings
    return manifest.languages.start_of(target_language, start, settings)
