"""Generation settings that a model is published with: how the next token is chosen, and the rules
that constrain every choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

EarlyStopping = bool | Literal["never"]

WITHOUT_RULES = (
    *("prompt", "end_token_ids", "max_new_tokens", "speech", "alignment_heads"),
    *("num_beams", "length_penalty", "early_stopping"),
    *("do_sample", "temperature", "top_k", "top_p", "min_p"),
)
"""Settings that leave the logits of a step as they are."""


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
    """How a model is decoded, with the meaning of Hugging Face's generation settings.

    `greedy_uncached` obeys the rules and decodes greedily whatever the strategy is;
    `beam_search_uncached` obeys the settings of beam search, too.

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
        alignment_heads: layer and head, both counted from 0, of each cross-attention that aligns
            words; none: unspecified
        num_beams: how many hypotheses beam search keeps; 1: no beam search
        length_penalty: hypotheses are ranked by their log-probability divided by their length to
            this power: 0 ranks by the log-probability, and more favours longer ones
        early_stopping: beam search ends as soon as it has `num_beams` finished hypotheses (True);
            when the best unfinished one would rank below them as it is (False), or at the most
            favourable length ("never")
        do_sample: tokens are drawn from the distribution instead
        temperature: logits are divided by it before a token is drawn
        top_k: tokens are drawn among this many most probable ones; 0: among all
        top_p: tokens are drawn among the fewest most probable ones that together have at least
            this probability; 1: among all
        min_p: tokens are drawn among those that have at least this share of the probability of the
            most probable one; 0: among all
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
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    alignment_heads: tuple[tuple[int, int], ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether no rule changes the logits: the greedy choice is their argmax."""
        rules = (field for field in fields(self) if field.name not in WITHOUT_RULES)
        return all(getattr(self, rule.name) == rule.default for rule in rules)

    def end_tokens(self, model_end_token_id: int) -> tuple[int, ...]:
        """The tokens that end an output."""
        return (model_end_token_id,) if self.end_token_ids is None else self.end_token_ids

    def _forced(self, count: int, limit: int) -> int | None:
        """The count-th new token (the first is 1) if it is forced."""
        if count == limit and self.forced_last_token_id is not None:
            return self.forced_last_token_id
        return self.forced_first_token_id if count == 1 else None

    def _is_first(self, count: int) -> bool:
        """Whether the count-th new token is the first unforced one."""
        return count == (1 if self.forced_first_token_id is None else 2)

    def scores(
        self,
        scores: Tensor,
        source: Sequence[int],
        prompt: list[int],
        new: list[int],
        *,
        end_tokens: Sequence[int],
        limit: int,
    ) -> Tensor:
        """The scores [V] of one sequence's next token under the rules: minus infinity for tokens
        that they forbid, 0 for one that they force. The greedy choice is the argmax, 0 if no token
        is left.

        As at Hugging Face, they act on logits in greedy decoding and on log-probabilities in beam
        search, which are not normalized again.

        Args:
            scores: [V], logits or log-probabilities; not changed
            source: the tokens of the source; none for features
            prompt: start token and prompt
            new: tokens generated so far
            end_tokens: the tokens that end an output
            limit: maximum number of new tokens
        """
        count = len(new) + 1
        forced = self._forced(count, limit)
        scores = scores.clone()
        if forced is not None:
            scores[:] = -math.inf
            scores[forced] = 0
            if self._is_first(count):  # Hugging Face suppresses after it has forced
                scores[list(self.first_suppressed_token_ids)] = -math.inf
            return scores
        tokens = prompt + new
        penalty = self.repetition_penalty
        for token in set(tokens) if penalty != 1 else ():
            score = scores[token]
            scores[token] = score * penalty if score < 0 else score / penalty
        scores[list(self.suppressed_token_ids)] = -math.inf
        if self._is_first(count):
            scores[list(self.first_suppressed_token_ids)] = -math.inf
        if len(new) < self.min_new_tokens or len(tokens) < self.min_length:
            scores[list(end_tokens)] = -math.inf
        for token in (
            *_completing(tokens, tokens, self.no_repeat_ngram_size),
            *_completing(tokens, source, self.encoder_no_repeat_ngram_size),
            *self._ending_bad_words(tokens),
        ):
            scores[token] = -math.inf
        return scores

    def _ending_bad_words(self, tokens: list[int]) -> list[int]:
        """Tokens that would complete a bad word."""
        return [word[-1] for word in self.bad_words if tokens[1 - len(word) :] == list(word[:-1])]


def _completing(tokens: Sequence[int], earlier: Sequence[int], size: int) -> set[int]:
    """Tokens that, after `tokens`, would complete an n-gram of this size that occurs in `earlier`;
    none for size 0.
    """
    if not size or len(tokens) < size - 1:
        return set()
    ending = list(tokens[len(tokens) - size + 1 :])
    ngrams = [list(earlier[i : i + size]) for i in range(len(earlier) - size + 1)]
    return {ngram[-1] for ngram in ngrams if ngram[:-1] == ending}
