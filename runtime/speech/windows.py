"""Windows of audio -> requests of the decoding loop: prompts, language detection, timestamps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..decoding.logits_processors import LogitsProcessor, Row
from ..decoding.request import Given, Request, Rules
from ..format.generation_settings import GenerationSettings
from ..format.model_spec import ModelSpec
from ..format.speech import SpeechTokens
from .timestamps import TimestampProcessor


class TimestampsAfterPrompt:
    """Adapts `TimestampProcessor` to `LogitsProcessor`, whose tokens include the prompt."""

    def __init__(self, processor: TimestampProcessor, prompt_length: int) -> None:
        self._processor, self._prompt_length = processor, prompt_length

    def active(self, count: int) -> bool:
        return True

    def apply(self, scores: NDArray[np.float32], row: Row) -> None:
        self._processor.apply(scores, row.tokens[self._prompt_length :])


@dataclass(frozen=True)
class WindowPlan:
    """Windows with one kind of prompt.

    Attributes:
        instructions: the prompt after the language, see `PromptRequest.instructions`
        limit: the most tokens to generate for a window, including the end token
        timestamps: whether timestamps are generated
    """

    model: ModelSpec
    speech: SpeechTokens
    settings: GenerationSettings
    instructions: Sequence[int]
    limit: int
    timestamps: bool

    def request(self, window: NDArray[np.float32], language: int | None) -> Request:
        """The request for a window.

        An unknown language is detected after the start token, in the same state, so that nothing is
        encoded twice: the decoder is given the most probable one, and then the rest of the prompt.

        Args:
            window: features, [bins, frames of a window]
            language: the token of its language; None: unknown, or the model is not told one
        """
        start = self.model.start_token_id
        detecting = bool(self.speech.languages) and language is None
        prompt = [start, *([] if language is None else [language]), *self.instructions]
        given: tuple[Given, ...] = ()
        if detecting:
            prompt, given = [start], (tuple(self.speech.languages.values()), *self.instructions)
        length = len(prompt) + len(given)
        return Request(
            source=window,
            prompt=prompt,
            given=given,
            rules=Rules.of(
                self.settings,
                limit=self.limit,
                end_tokens=self.settings.end_tokens(self.model.end_token_id),
                prompt_length=length,
                processors=self._timestamp_processors(length),
            ),
        )

    def _timestamp_processors(self, prompt_length: int) -> list[LogitsProcessor]:
        last = self.speech.no_timestamps_token_id
        if not self.timestamps or last is None:
            return []
        latest = self.speech.max_initial_timestamp_index
        processor = TimestampProcessor(self.model.end_token_id, last, latest)
        return [TimestampsAfterPrompt(processor, prompt_length)]
