"""What a call's options mean for a speech model."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from dragoman.errors import DragomanError

from ..decoding.limits import GenerationLimits
from ..decoding.options import GenerationOptions
from ..decoding.sampling import Sample
from ..decoding.search import Strategy
from ..decoding.strategies import strategies
from ..format.manifest import Manifest
from ..format.speech import SpeechTokens
from .prompts import PromptRequest
from .windows import WindowPlan

FOR_TEXTS = (
    *("source_language", "target_language", "max_new_tokens_per_source_token", "prefix"),
    *("must_contain", "must_not_contain", "num_return_sequences", "alternatives"),
)


@dataclass(frozen=True)
class SpeechPlan:
    """Options resolved for a model.

    Attributes:
        prompt: what the model is told
    """

    options: GenerationOptions
    limits: GenerationLimits
    strategy: Strategy
    prompt: PromptRequest

    @classmethod
    def of(cls, options: GenerationOptions, manifest: Manifest, speech: SpeechTokens) -> SpeechPlan:
        """
        Raises:
            DragomanError: options contradict each other, or are not for this model.
        """
        limits = GenerationLimits.of(options, manifest)
        default = GenerationOptions()
        wrong = [n for n in FOR_TEXTS if getattr(options, n) != getattr(default, n)]
        if wrong:
            raise DragomanError(
                f"{', '.join(wrong)}: for text models; a speech model takes language and task"
            )
        (strategy,) = strategies(options, manifest)
        return cls(options, limits, strategy, PromptRequest.of(options, speech))

    def windows(self, manifest: Manifest, speech: SpeechTokens, *, timed: bool) -> WindowPlan:
        """How windows are decoded with or without timestamps, which prompts tell."""
        prompt = self.prompt.with_timestamps(timed)
        instructions = prompt.instructions(speech)
        limit = self.limits.max_new_tokens
        if self.options.max_new_tokens is None:
            # The bundle's default leaves room for the manifest's prompt; this one may be shorter.
            prompt_length = bool(speech.languages) + len(instructions)
            limit += len(manifest.generation.prompt) - prompt_length
        return WindowPlan(
            manifest.model,
            speech,
            manifest.generation.with_minimum(self.options.min_new_tokens),
            instructions,
            limit,
            timed,
        )

    def strategy_of(self, window: int) -> Strategy:
        """The strategy for a window of a recording: each has random numbers of its own."""
        if isinstance(self.strategy, Sample):
            return dataclasses.replace(self.strategy, index=window)
        return self.strategy

    def rows(self, positions: int, fitting: int | None, most: int | None) -> int:
        """The most windows in a batch, times beams.

        Args:
            positions: of a window
            fitting: how many rows the device has memory for; None: unknown
            most: how many rows the backend accepts; None: any number
        """
        rows = self.strategy.width * (self.limits.max_batch_tokens // positions)
        if self.limits.max_batch_size is None:
            rows = fitting or rows
        else:
            rows = min(rows, self.limits.max_batch_size)
        return max(1, min(rows, most or rows))
