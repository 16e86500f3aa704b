"""Generation settings that a model is published with: constraints on greedy decoding."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Speech:
    """The prompt tokens of a Whisper model (Radford et al. 2022, section 2.3).

    Attributes:
        languages: language code -> token; empty for a model of one language, whose prompt does not
            name it
        tasks: "transcribe" and "translate" -> token; empty if the prompt names no task
        no_timestamps_token_id: the last prompt token when timestamps are not wanted; the timestamp
            tokens follow it in the vocabulary. None: the model has no timestamps.
        max_initial_timestamp_index: the latest first timestamp, in steps of 0.02 s; None: no limit
        default_language: a code; None: the language that the model finds most probable
        default_task: None: as in Hugging Face Transformers, "transcribe" if the user names the
            language, and no task token if the language is detected
    """

    languages: dict[str, int] = field(default_factory=dict)
    tasks: dict[str, int] = field(default_factory=dict)
    no_timestamps_token_id: int | None = None
    max_initial_timestamp_index: int | None = None
    default_language: str | None = None
    default_task: str | None = None


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """Constraints on greedy decoding, with the meaning of Hugging Face's generation settings.

    Attributes:
        prompt: decoder input tokens after the start token; not part of the output. For a speech
            model with languages: one of the possible prompts.
        forced_first_token_id: the first new token, regardless of the logits (mBART-50 and NLLB:
            the target language)
        forced_last_token_id: the new token at the output's maximum length
        suppressed_token_ids: tokens that are never chosen
        first_suppressed_token_ids: tokens that are not chosen as the first unforced token
        min_new_tokens: the end token is not chosen before this many new tokens
        no_repeat_ngram_size: no n-gram of this size occurs twice; 0: no constraint
        repetition_penalty: logits of tokens that occurred before are divided by it if positive and
            multiplied by it if negative (Keskar et al. 2019, section 4.1)
        max_new_tokens: the default maximum number of tokens to generate; None: unspecified
        speech: the prompt tokens of a speech model; None: unspecified, or not a speech model
    """

    prompt: tuple[int, ...] = ()
    forced_first_token_id: int | None = None
    forced_last_token_id: int | None = None
    suppressed_token_ids: tuple[int, ...] = ()
    first_suppressed_token_ids: tuple[int, ...] = ()
    min_new_tokens: int = 0
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0
    max_new_tokens: int | None = None
    speech: Speech | None = None

    @property
    def is_plain(self) -> bool:
        """Whether every token is simply the argmax of the logits."""
        return self == GenerationConfig(
            prompt=self.prompt, max_new_tokens=self.max_new_tokens, speech=self.speech
        )

    def scores(
        self, logits: Tensor, prompt: list[int], new: list[int], *, end_token_id: int, limit: int
    ) -> Tensor:
        """Logits [V] of one sequence's next token under the constraints: minus infinity for tokens
        that they forbid. The greedy choice is the argmax.

        Args:
            logits: [V]
            prompt: start token and prompt
            new: tokens generated so far
            limit: maximum number of new tokens
        """
        forced = self.forced_first_token_id if not new else None
        if len(new) + 1 == limit and self.forced_last_token_id is not None:
            forced = self.forced_last_token_id
        logits = logits.clone()
        if forced is not None:
            only = logits[forced].clone()
            logits[:] = -math.inf
            logits[forced] = only
            return logits
        tokens = prompt + new
        penalty = self.repetition_penalty
        for token in set(tokens) if penalty != 1 else ():
            score = logits[token]
            logits[token] = score * penalty if score < 0 else score / penalty
        logits[list(self.suppressed_token_ids)] = -math.inf
        if len(new) == (self.forced_first_token_id is not None):
            logits[list(self.first_suppressed_token_ids)] = -math.inf
        if len(new) < self.min_new_tokens:
            logits[end_token_id] = -math.inf
        for token in self._repeating(tokens):
            logits[token] = -math.inf
        return logits

    def _repeating(self, tokens: list[int]) -> set[int]:
        """Tokens that would complete an n-gram that occurred before."""
        size = self.no_repeat_ngram_size
        if not size or len(tokens) < size:
            return set()
        ending = tokens[len(tokens) - size + 1 :]
        ngrams = [tokens[i : i + size] for i in range(len(tokens) - size + 1)]
        return {ngram[-1] for ngram in ngrams if ngram[:-1] == ending}
