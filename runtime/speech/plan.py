"""Resolves options of speech models, and creates requests for windows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError
from dragoman.settings.generation import GenerationKeywords, GenerationOptions
from dragoman.settings.generation_settings import GenerationSettings
from dragoman.settings.speech import SpeechTokens

from ..audio.voice_activity import RATE, detector_is_installed
from ..backends.interface import Encoded
from ..decoding.beam_search import Beam
from ..decoding.greedy_and_sampling import BestSample, Sample
from ..decoding.logits_processors import LogitsProcessor, Row
from ..decoding.request import PrefixToken, Request, Rules
from ..decoding.running_batch import DecodedJob
from ..decoding.search import Strategy
from ..decoding.strategies import GenerationLimits, strategies
from ..format.manifest import Manifest
from ..format.model_spec import ModelSpec
from .prompts import PromptRequest
from .timestamps import TimestampProcessor

FOR_TEXTS = (
    *("source_language", "target_language", "max_new_tokens_per_source_token"),
    *("must_contain", "must_not_contain", "num_return_sequences", "alternatives"),
    *("end_token_id", "truncate", "split", "split_language"),
)


OF_OTHER_TOKENS = ("fallback", "initial_prompt", "hotwords", "condition_on_previous_text")
"""Options that require the tokens for no speech and for previous text."""

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Temperatures of the attempts at a window; the first is greedy or beam search."""

SAMPLES = 5
"""Number of samples of each further attempt, of which the most probable one is the output."""

BEAMS = 5
"""The beams of openai-whisper's command."""


def transcription_defaults(
    options: GenerationOptions, manifest: Manifest, rows: int | None = None
) -> GenerationOptions:
    """Return the options of a transcription: what is unset is as in openai-whisper's command.

    Windows are decoded with timestamps and five beams, again if they are doubtful, and on condition
    of the text before. Only speech is decoded if a voice activity detector is installed. A call
    that samples has neither beams nor fallback. Parts of a recording that is divided at silence do
    not know the text before, and have timestamps only if words are timed. Options of text models
    stay as they are.
    """
    speech, audio, executable = manifest.speech, manifest.audio, manifest.executable
    if speech is None or audio is None:
        return options
    settings, changes = manifest.generation, GenerationKeywords()
    samples = settings.do_sample if options.do_sample is None else options.do_sample
    if options.num_beams is None and not samples and options.temperature is None:
        limits = (BEAMS, rows, options.max_batch_size, executable.rows)
        beams = min(limit for limit in limits if limit is not None)
        changes["num_beams"] = max(beams, settings.num_beams)
    knows = speech.previous_text_token_id is not None
    if options.fallback is None:
        changes["fallback"] = knows and not samples and manifest.tokenizers is not None
    if options.condition_on_previous_text is None:
        changes["condition_on_previous_text"] = knows and not options.cut_at_silence
    if options.timestamps is None:
        needed = options.word_timestamps or not options.cut_at_silence
        changes["timestamps"] = needed and speech.timestamp_begin is not None
    if options.vad is None:
        usable = audio.sampling_rate == RATE and detector_is_installed()
        changes["vad"] = usable or options.cut_at_silence
    return options.replace(**changes)


def greedy_transcription(options: GenerationOptions, manifest: Manifest) -> GenerationOptions:
    """Return options with the defaults of `Model.generate` and greedy search."""
    speech = manifest.speech
    if speech is None:
        return options
    changes = GenerationKeywords()
    if options.timestamps is None and not options.word_timestamps:
        changes["timestamps"] = speech.default_timestamps
    samples = options.do_sample or options.temperature is not None
    if options.num_beams is None and not samples:
        changes |= {"num_beams": 1, "do_sample": False}
    if options.fallback is None:
        changes["fallback"] = False
    if options.condition_on_previous_text is None:
        changes["condition_on_previous_text"] = False
    if options.vad is None:
        changes["vad"] = options.cut_at_silence
    return options.replace(**changes)


@dataclass(frozen=True)
class SpeechPlan:
    """The options of a call, resolved for a speech model."""

    options: GenerationOptions
    limits: GenerationLimits
    strategy: Strategy
    prompt: PromptRequest

    @classmethod
    def of(cls, options: GenerationOptions, manifest: Manifest, speech: SpeechTokens) -> SpeechPlan:
        """Resolve the options of a call."""
        limits = GenerationLimits.of(options, manifest)
        wrong = options.given(FOR_TEXTS)
        if wrong:
            raise DragomanError(
                f"{', '.join(wrong)}: for text models; a speech model takes language and task"
            )
        (strategy,) = strategies(options, manifest)
        if options.fallback and isinstance(strategy, Sample):
            raise DragomanError("fallback: expected no do_sample: it chooses temperatures itself")
        if options.fallback and isinstance(strategy, Beam) and options.early_stopping is None:
            strategy = dataclasses.replace(strategy, early_stopping=True)  # as in openai-whisper
        unknown = [name for name in OF_OTHER_TOKENS if getattr(options, name)]
        if unknown and speech.previous_text_token_id is None:
            raise DragomanError(
                f"{', '.join(unknown)}: expected a model with tokens for no speech and for text "
                "before a window"
            )
        for name, excluded in (
            ("vad", options.vad is False),
            ("condition_on_previous_text", bool(options.condition_on_previous_text)),
        ):
            if options.cut_at_silence and excluded:
                raise DragomanError(
                    f"cut_at_silence: expected {name} {not getattr(options, name)}: windows that "
                    "are decoded together begin at pauses, and do not know each other"
                )
        if options.cut_at_silence:
            options = options.replace(vad=True)
        if options.word_timestamps and options.timestamps is None:
            options = options.replace(timestamps=speech.timestamp_begin is not None)
        return cls(options, limits, strategy, PromptRequest.of(options, speech))

    def limited(self, most: int) -> SpeechPlan:
        """Return the plan with a limit of new tokens for a window."""
        most = min(most, self.limits.max_new_tokens)
        limits = dataclasses.replace(self.limits, max_new_tokens=most)
        return dataclasses.replace(
            self, limits=limits, options=self.options.replace(max_new_tokens=most)
        )

    def windows(self, manifest: Manifest, speech: SpeechTokens, *, timed: bool) -> WindowPlan:
        """Return the decoding plan of windows, with or without timestamps."""
        prompt = dataclasses.replace(self.prompt, timestamps=timed)
        instructions = prompt.instructions(speech)
        limit = self.limits.max_new_tokens
        if self.options.max_new_tokens is None:
            # The bundle's default leaves room for the manifest's prompt; this one may be shorter.
            prompt_length = bool(speech.languages) + len(instructions)
            limit += len(manifest.generation.prompt) - prompt_length
            if self.options.fallback:  # as in openai-whisper: longer texts repeat themselves
                limit = min(limit, self.limits.positions // 2)
        rules = self.options.rules(manifest.generation)
        if self.options.fallback:
            rules = dataclasses.replace(rules, renormalize_logits=True)
        return WindowPlan(
            manifest.model,
            speech,
            rules,
            instructions,
            limit,
            self.limits.positions,
            timed,
            bool(self.options.fallback),
        )

    def strategy_of(self, window: int, attempt: int, rows: int | None) -> Strategy:
        """Return the strategy for a window of a recording, after `attempt` attempts.

        A doubtful window is sampled at higher and higher temperatures (Radford et al. 2022, section
        4.5). The random numbers of each window, attempt and sample are always the same.
        """
        if isinstance(self.strategy, Sample):
            return dataclasses.replace(self.strategy, index=window)
        if attempt == 0:
            return self.strategy
        number = (window * len(TEMPERATURES) + attempt) * SAMPLES
        return BestSample(
            [
                Sample(0, number + i, temperature=TEMPERATURES[attempt])
                for i in range(min(SAMPLES, rows or SAMPLES))
            ]
        )

    def rows(self, positions: int, fitting: int | None, most: int | None) -> int:
        """Return the maximum number of rows in a batch: windows times beams.

        Args:
            fitting: rows that fit into the device's memory; None: unknown
            most: the backend's maximum; None: unlimited
        """
        rows = self.strategy.width * (self.limits.max_batch_tokens // positions)
        if self.limits.max_batch_size is None:
            rows = fitting or rows
        else:
            rows = min(rows, self.limits.max_batch_size)
        return max(1, min(rows, most or rows))


class TimestampsAfterPrompt(LogitsProcessor):
    """Applies a `TimestampProcessor` to the tokens after the prompt."""

    def __init__(self, processor: TimestampProcessor, prompt_length: int) -> None:
        self._processor, self._prompt_length = processor, prompt_length

    def apply(self, scores: NDArray[np.float32], row: Row) -> None:
        """Set the scores [V] of tokens that may not follow to -inf."""
        self._processor.apply(scores, row.tokens[self._prompt_length :])


@dataclass(frozen=True)
class WindowPlan:
    """The decoding plan of windows with the same prompt."""

    model: ModelSpec
    speech: SpeechTokens
    settings: GenerationSettings
    instructions: Sequence[int]
    """Prompt tokens after the language, see `PromptRequest.instructions`."""
    limit: int
    positions: int
    timestamps: bool
    judged: bool = False

    def request(
        self,
        window: NDArray[np.float32] | Encoded,
        language: int | None,
        context: Sequence[int] = (),
        *,
        hotwords: Sequence[int] = (),
        beginning: Sequence[int] = (),
        keeps_encoded: Callable[[DecodedJob[Any]], bool] | None = None,
    ) -> Request:
        """Create the request for a window.

        An unknown language is detected in the same state, so that the window is encoded once: after
        the start token, the decoder reads the most probable language, then the rest of the prompt.

        Args:
            window: features [bins, frames of a window], or encoded
            language: language token; None: unknown, or the model has no languages
            hotwords: tokens before the context; together they are cut to half of the positions
            beginning: tokens that the output begins with, which requires the language
            keeps_encoded: see `Request`

        Raises:
            DragomanError: there is no room for a token after `beginning`.
        """
        previous = self._previous(hotwords, context)
        prompt = [*previous, self.model.start_token_id]
        instructions = [*([] if language is None else [language]), *self.instructions]
        following = [*instructions, *beginning]
        prefix: tuple[PrefixToken, ...] = ()
        if self.speech.languages and language is None:
            prefix = (tuple(self.speech.languages.values()), *following)
        elif self.judged:
            prefix = tuple(following)
        else:
            prompt += following
        length = len(prompt) + len(prefix)
        limit = self.limit - len(beginning)
        if previous or beginning:
            limit = min(limit, self.positions - length)
        if limit < 1 and beginning:
            raise DragomanError(
                f"prefix: expected fewer than {len(beginning) + limit} tokens, the room for a "
                f"text, found {len(beginning)}"
            )
        limit = max(1, limit)
        return Request(
            source=window,
            prompt=prompt,
            prefix=prefix,
            observed=self.speech.no_speech_token_id if self.judged else None,
            keeps_encoded=keeps_encoded,
            rules=Rules.of(
                self.settings,
                limit=limit,
                end_tokens=self.settings.end_tokens(self.model.end_token_id),
                prompt_length=length,
                processors=self._timestamp_processors(length - len(beginning)),
            ),
        )

    def _previous(self, hotwords: Sequence[int], context: Sequence[int]) -> list[int]:
        token, room = self.speech.previous_text_token_id, self.positions // 2 - 1
        if not (hotwords or context) or token is None:
            return []
        first = [token, *hotwords[:room]]
        return [*first, *context[max(0, len(context) - (room + 1 - len(first))) :]]

    def _timestamp_processors(self, prompt_length: int) -> list[LogitsProcessor]:
        last = self.speech.no_timestamps_token_id
        if not self.timestamps or last is None:
            return []
        latest = self.speech.max_initial_timestamp_index
        end, window = self.model.end_token_id, self.model.max_source_positions
        processor = TimestampProcessor(end, last, latest, window)
        return [TimestampsAfterPrompt(processor, prompt_length)]
