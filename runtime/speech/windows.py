"""Windows of audio -> tokens: the decoding loop with prompts, language detection and timestamps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import numpy as np
from numpy.typing import NDArray

from ..backends.interface import Backend, DecodingState, Step
from ..decoding.batching import as_batch
from ..decoding.greedy import Choice, continue_greedy
from ..decoding.logits_processors import LogitsProcessor, Row
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

    def apply(self, logits: NDArray[np.float32], rows: Sequence[Row]) -> None:
        generated = [row.tokens[self._prompt_length :] for row in rows]
        logits[...] = self._processor.apply(logits, generated)


class WindowDecoder:
    """Decodes windows with one kind of prompt.

    Args:
        instructions: the prompt after the language, see `PromptRequest.instructions`
        limit: the most tokens to generate for a window, including the end token
        timestamps: whether timestamps are generated
    """

    def __init__(
        self,
        backend: Backend,
        model: ModelSpec,
        speech: SpeechTokens,
        settings: GenerationSettings,
        instructions: Sequence[int],
        limit: int,
        *,
        timestamps: bool,
    ) -> None:
        self._backend, self._model, self._speech = backend, model, speech
        self._settings = settings
        self._instructions, self._limit, self._timestamps = instructions, limit, timestamps

    def choices(
        self, windows: Sequence[NDArray[np.float32]], languages: list[int | None]
    ) -> Iterator[Choice]:
        """Decode a batch, yielding every token as soon as it is known.

        An unknown language is detected after the start token, in the same state, so that nothing is
        encoded twice. The rest of the prompt follows token by token.

        Args:
            windows: features, [bins, frames of a window] each
            languages: the token of each window's language, None where unknown. Detected ones are
                filled in before the first choice.
        """
        start = self._model.start_token_id
        ends = self._settings.end_tokens(self._model.end_token_id)
        detecting = bool(self._speech.languages) and None in languages
        prompts = [[start]] * len(windows) if detecting else self._prompts(languages)
        with closing(self._start(windows, prompts)) as state:
            if detecting:
                languages[:] = self._detect(state, languages)
                prompts = self._prompts(languages)
                for token in self._instructions:
                    _feed(state, np.full(len(prompts), token))
            limits = [self._limit] * len(windows)
            timestamps = self._timestamp_processors(len(prompts[0]))
            rows = [Row((), prompt) for prompt in prompts]
            yield from continue_greedy(state, rows, limits, self._settings, ends, timestamps)

    def _prompts(self, languages: Sequence[int | None]) -> list[list[int]]:
        """The decoder's first input of each row: start token, language, instructions."""
        return [
            [self._model.start_token_id, *([] if token is None else [token]), *self._instructions]
            for token in languages
        ]

    def _start(
        self, windows: Sequence[NDArray[np.float32]], prompts: list[list[int]]
    ) -> DecodingState:
        prompt_length = bool(self._speech.languages) + len(self._instructions)
        source, mask = as_batch(windows, self._model)
        # The start token occupies a position; the last new token does not.
        return self._backend.start(source, mask, np.asarray(prompts), prompt_length + self._limit)

    def _detect(self, state: DecodingState, known: Sequence[int | None]) -> list[int]:
        """The languages of all rows: the most probable one after the start token where unknown."""
        languages = np.sort([*self._speech.languages.values()])

        def choose(logits: NDArray[np.float32]) -> Step:
            best = languages[logits[:, languages].argmax(1)]
            tokens = [b if k is None else k for b, k in zip(best, known, strict=True)]
            return Step(np.asarray(tokens, np.int64), np.zeros(len(tokens), np.float32))

        chosen: list[int] = state.step_choosing(choose).tokens.tolist()
        return chosen

    def _timestamp_processors(self, prompt_length: int) -> list[LogitsProcessor]:
        last = self._speech.no_timestamps_token_id
        if not self._timestamps or last is None:
            return []
        latest = self._speech.max_initial_timestamp_index
        processor = TimestampProcessor(self._model.end_token_id, last, latest)
        return [TimestampsAfterPrompt(processor, prompt_length)]


def _feed(state: DecodingState, tokens: NDArray[np.int64]) -> None:
    """Continue with these tokens, whatever the logits."""
    state.step_choosing(lambda logits: Step(tokens, np.zeros(len(tokens), np.float32)))
