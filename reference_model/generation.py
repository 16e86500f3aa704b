"""Generation settings that a model is published with: constraints on greedy decoding."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
        default_timestamps: whether timestamps are generated unless the user says otherwise
    """

    languages: dict[str, int] = field(default_factory=dict)
    tasks: dict[str, int] = field(default_factory=dict)
    no_timestamps_token_id: int | None = None
    max_initial_timestamp_index: int | None = None
    default_language: str | None = None
    default_task: str | None = None
    default_timestamps: bool = False


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """Constraints on greedy decoding, with the meaning of Hugging Face's generation settings.

    Attributes:
        prompt: decoder input tokens after the start token; not part of the output. For a speech
            model with languages: one of the possible prompts.
        forced_first_token_id: the first new token, regardless of the logits (mBART-50 and NLLB:
            the target language)
        forced_last_token_id: the new token at the output's maximum length
        end_token_ids: tokens that end an output; none: only the maximum length does. None: the
            model's end token
        suppressed_token_ids: tokens that are never chosen
        first_suppressed_token_ids: tokens that are not chosen as the first unforced token
        bad_words: sequences of at least two tokens that are not generated: the last token of each
            is not chosen after the others
        min_length: no end token is chosen while start token, prompt and output together have fewer
            tokens
        min_new_tokens: no end token is chosen before this many new tokens
        no_repeat_ngram_size: no n-gram of this size occurs twice; 0: no constraint
        encoder_no_repeat_ngram_size: no n-gram of this size in the source occurs in the output; 0:
            no constraint
        repetition_penalty: logits of tokens that occurred before are divided by it if positive and
            multiplied by it if negative (Keskar et al. 2019, section 4.1)
        max_new_tokens: the default maximum number of tokens to generate; None: unspecified
        speech: the prompt tokens of a speech model; None: unspecified, or not a speech model
    """

    prompt: tuple[int, ...] = ()
    forced_first_token_id: int | None = None
    forced_last_token_id: int | None = None
    end_token_ids: tuple[int, ...] | None = None
    suppressed_token_ids: tuple[int, ...] = ()
    first_suppressed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_length: int = 0
    min_new_tokens: int = 0
    no_repeat_ngram_size: int = 0
    encoder_no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0
    max_new_tokens: int | None = None
    speech: Speech | None = None

    @property
    def is_plain(self) -> bool:
        """Whether every token is simply the argmax of the logits."""
        return self == GenerationConfig(
            prompt=self.prompt,
            end_token_ids=self.end_token_ids,
            max_new_tokens=self.max_new_tokens,
            speech=self.speech,
        )

    def end_tokens(self, model_end_token_id: int) -> tuple[int, ...]:
        """The tokens that end an output."""
        return (model_end_token_id,) if self.end_token_ids is None else self.end_token_ids

    def forced(self, count: int, limit: int) -> int | None:
        """The count-th new token (the first is 1) if it is forced.

        Hugging Face suppresses tokens after it has forced one. If it is the same, no token is left,
        and the argmax is 0.
        """
        if count == limit and self.forced_last_token_id is not None:
            suppressed = self._is_first(count) and (
                self.forced_last_token_id in self.first_suppressed_token_ids
            )
            return 0 if suppressed else self.forced_last_token_id
        return self.forced_first_token_id if count == 1 else None

    def _is_first(self, count: int) -> bool:
        """Whether the count-th new token is the first unforced one."""
        return count == (1 if self.forced_first_token_id is None else 2)

    def scores(
        self,
        logits: Tensor,
        source: Sequence[int],
        prompt: list[int],
        new: list[int],
        *,
        end_tokens: Sequence[int],
        limit: int,
    ) -> Tensor:
        """Logits [V] of one sequence's next token under the constraints: minus infinity for tokens
        that they forbid. The greedy choice is the argmax.

        Args:
            logits: [V]
            source: the tokens of the source; none for features
            prompt: start token and prompt
            new: tokens generated so far
            end_tokens: the tokens that end an output
            limit: maximum number of new tokens
        """
        forced = self.forced(len(new) + 1, limit)
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
        if self._is_first(len(new) + 1):
            logits[list(self.first_suppressed_token_ids)] = -math.inf
        if len(new) < self.min_new_tokens or len(tokens) < self.min_length:
            logits[list(end_tokens)] = -math.inf
        for token in (
            *_completing(tokens, tokens, self.no_repeat_ngram_size),
            *_completing(tokens, source, self.encoder_no_repeat_ngram_size),
            *self._ending_bad_words(tokens),
        ):
            logits[token] = -math.inf
        return logits

    def _ending_bad_words(self, tokens: list[int]) -> list[int]:
        """Tokens that would complete a bad word."""
        return [word[-1] for word in self.bad_words if tokens[1 - len(word) :] == list(word[:-1])]


def _completing(tokens: Sequence[int], earlier: Sequence[int], size: int) -> set[int]:
    """Tokens that, after `tokens`, would complete an n-gram of this size that occurs in `earlier`;
    none for size 0."""
    if not size or len(tokens) < size - 1:
        return set()
    ending = list(tokens[len(tokens) - size + 1 :])
    ngrams = [list(earlier[i : i + size]) for i in range(len(earlier) - size + 1)]
    return {ngram[-1] for ngram in ngrams if ngram[:-1] == ending}
