"""Windows of audio -> tokens: prompts, languages and times over the loop that texts take, too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import numpy as np
from numpy.typing import NDArray

from ..audio import TimestampRule
from ..backends import Backend, DecodingState, Step
from ..choosing import Rule
from ..greedy import Choice, continued
from ..manifest import ModelFacts
from ..rules import Rules
from ..scheduling import as_batch
from .facts import Speech


class Times:
    """`TimestampRule` as one of the rules of a step, after a prompt of so many tokens."""

    def __init__(self, rule: TimestampRule, prompt_length: int) -> None:
        self._rule, self._given = rule, prompt_length

    def active(self, count: int) -> bool:
        return True

    def apply(self, logits: NDArray[np.float32], tokens: Sequence[Sequence[int]]) -> None:
        logits[...] = self._rule.apply(logits, [row[self._given :] for row in tokens])


class WindowDecoder:
    """Decodes windows under one kind of prompt.

    Args:
        instructions: what follows the language in the prompt, see `Speech.instructions`
        limit: the most tokens to generate for a window, the end token included
        timestamps: whether times are generated, too
    """

    def __init__(
        self,
        backend: Backend,
        facts: ModelFacts,
        speech: Speech,
        rules: Rules,
        instructions: Sequence[int],
        limit: int,
        *,
        timestamps: bool,
    ) -> None:
        self._backend, self._facts, self._speech, self._rules = backend, facts, speech, rules
        self._instructions, self._limit, self._timestamps = instructions, limit, timestamps

    def choices(
        self, windows: Sequence[NDArray[np.float32]], languages: list[int | None]
    ) -> Iterator[Choice]:
        """Decode a batch, yielding every token as soon as it is known.

        A language that is not known is chosen after the start token, in the same state: nothing is
        encoded twice. The rest of the prompt then goes in token by token.

        Args:
            windows: features, [bins, frames of a window] each
            languages: the token of each one's language, where it is known. All are there when the
                first choice comes, if the model is told a language.
        """
        start, end = self._facts.start_token_id, self._facts.end_token_id
        detecting = bool(self._speech.languages) and None in languages
        prompts = [[start]] * len(windows) if detecting else self._prompts(languages)
        with closing(self._started(windows, prompts)) as state:
            if detecting:
                languages[:] = self._detected(state, languages)
                prompts = self._prompts(languages)
                for token in self._instructions:
                    _feed(state, np.full(len(prompts), token))
            limits = [self._limit] * len(windows)
            times = self._times(len(prompts[0]))
            yield from continued(state, prompts, limits, self._rules, end, times)

    def _prompts(self, languages: Sequence[int | None]) -> list[list[int]]:
        """For each row the start token and what it is told."""
        return [
            [self._facts.start_token_id, *([] if token is None else [token]), *self._instructions]
            for token in languages
        ]

    def _started(
        self, windows: Sequence[NDArray[np.float32]], prompts: list[list[int]]
    ) -> DecodingState:
        told = bool(self._speech.languages) + len(self._instructions)
        source, mask = as_batch(windows, self._facts)
        # The last token is not fed back, the start token is.
        return self._backend.start(source, mask, np.asarray(prompts), told + self._limit)

    def _detected(self, state: DecodingState, known: Sequence[int | None]) -> list[int]:
        """The language after the start token: the most probable one, where it is not known."""
        languages = np.sort([*self._speech.languages.values()])

        def choose(logits: NDArray[np.float32]) -> Step:
            found = languages[logits[:, languages].argmax(1)]
            tokens = [f if k is None else k for f, k in zip(found, known, strict=True)]
            return Step(np.asarray(tokens, np.int64), np.zeros(len(tokens), np.float32))

        chosen: list[int] = state.step_choosing(choose).tokens.tolist()
        return chosen

    def _times(self, prompt_length: int) -> list[Rule]:
        rule = self._speech.timestamp_rule(self._facts.end_token_id)
        return [Times(rule, prompt_length)] if self._timestamps and rule is not None else []


def _feed(state: DecodingState, tokens: NDArray[np.int64]) -> None:
    """Let these follow, whatever the logits."""
    state.step_choosing(lambda logits: Step(tokens, np.zeros(len(tokens), np.float32)))
