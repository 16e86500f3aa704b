"""Generation settings that a model was published with, as plain data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

SMALLEST_FLOAT32, LARGEST_FLOAT32 = 2.0**-126, (2 - 2.0**-23) * 2.0**127
"""The range of positive normal numbers."""

LARGEST_LENGTH_PENALTY = 50
"""A million positions to this power still are a number."""

EarlyStopping = bool | Literal["never"]

STRATEGY = (
    *("num_beams", "length_penalty", "early_stopping"),
    *("do_sample", "temperature", "top_k", "top_p", "min_p"),
)
"""The settings that choose among the tokens that the others, the rules, leave."""


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """How a model is decoded unless the caller says otherwise; names as in Hugging Face's
    generation config.

    Attributes:
        prompt: tokens that follow the start token in the decoder's input; not part of the output.
            A speech model with languages has several prompts; parity is checked with this one.
        forced_first_token_id: the first new token, whatever the logits (mBART-50, NLLB: the
            language)
        forced_last_token_id: the last new token of an output that reaches its limit
        end_token_ids: tokens that end an output; none: only its limit does. None: the model's end
            token
        suppressed_token_ids: never chosen; the graph's own choice excludes them too
        first_suppressed_token_ids: not chosen as the first token that is not forced
        bad_words: sequences of at least two tokens; the last of each is not chosen after the others
        min_length: no end token is chosen while start token, prompt and output together have fewer
            tokens
        min_new_tokens: no end token is chosen before this many new tokens
        no_repeat_ngram_size: no n-gram of this size occurs twice; 0: no limit
        encoder_no_repeat_ngram_size: no n-gram of this size in the source occurs in the output; 0:
            no limit
        repetition_penalty: positive logits of tokens that occurred are divided by it, negative
            ones multiplied (Keskar et al. 2019, section 4.1)
        num_beams: how many hypotheses beam search keeps; 1: no beam search
        length_penalty: hypotheses are ranked by their log-probability divided by their length to
            this power
        early_stopping: beam search ends as soon as it has `num_beams` finished hypotheses (True);
            when the best unfinished one would rank below them as it is (False), or at the most
            favourable length ("never")
        do_sample: tokens are drawn from the distribution; not with beams
        temperature: logits are divided by it before a token is drawn
        top_k: tokens are drawn among this many most probable ones; 0: among all
        top_p: tokens are drawn among the fewest most probable ones that together have at least
            this probability; 1: among all
        min_p: tokens are drawn among those that have at least this share of the probability of the
            most probable one; 0: among all
        alignment_heads: layer and head, both counted from 0, of each cross-attention that aligns
            words; none: the model does not say
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
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    alignment_heads: tuple[tuple[int, ...], ...] = ()

    @property
    def heads_that_align(self) -> tuple[tuple[int, int], ...]:
        """`alignment_heads`, checked."""
        return tuple((layer, head) for layer, head in self.alignment_heads)

    def with_minimum(self, new_tokens: int | None) -> GenerationSettings:
        """The same with this minimum in place of its own; None: its own."""
        if new_tokens is None:
            return self
        return dataclasses.replace(self, min_new_tokens=new_tokens, min_length=0)

    def end_tokens(self, model_end_token_id: int) -> tuple[int, ...]:
        """The tokens that end an output."""
        return (model_end_token_id,) if self.end_token_ids is None else self.end_token_ids

    @property
    def first_free(self) -> int:
        """Which new token is the first that is not forced; the first of all is 1."""
        return 1 if self.forced_first_token_id is None else 2

    def last_token(self, count: int) -> int | None:
        """The token that is forced at the limit, if the count-th new token is there.

        Hugging Face suppresses tokens after it has forced one. If it is the same, no token is left,
        and the argmax is 0.
        """
        suppressed = self.first_suppressed_token_ids if count == self.first_free else ()
        return 0 if self.forced_last_token_id in suppressed else self.forced_last_token_id

    def problems(self, vocabulary: int) -> list[str]:
        """Values out of range for a target vocabulary of this size, a line each."""
        ids = {
            "prompt": self.prompt,
            "forced_first_token_id": self._one(self.forced_first_token_id),
            "forced_last_token_id": self._one(self.forced_last_token_id),
            "end_token_ids": self.end_token_ids or (),
            "suppressed_token_ids": self.suppressed_token_ids,
            "first_suppressed_token_ids": self.first_suppressed_token_ids,
            "bad_words": tuple(token for word in self.bad_words for token in word),
        }
        problems = [
            f"{name}: expected token ids in [0, {vocabulary}), found {token}"
            for name, tokens in ids.items()
            for token in tokens
            if not 0 <= token < vocabulary
        ]
        problems += [
            f"bad_words: expected words of at least two tokens, found {list(word)}"
            for word in self.bad_words
            if len(word) < 2
        ]
        for name in (
            "min_length",
            "min_new_tokens",
            "no_repeat_ngram_size",
            "encoder_no_repeat_ngram_size",
            "top_k",
        ):
            if getattr(self, name) < 0:
                problems.append(f"{name}: expected at least 0, found {getattr(self, name)}")
        for name in ("repetition_penalty", "temperature"):
            if not SMALLEST_FLOAT32 <= getattr(self, name) <= LARGEST_FLOAT32:
                problems.append(
                    f"{name}: expected over 0, in the range of float32, found {getattr(self, name)}"
                )
        for name in ("top_p", "min_p"):
            if not 0 <= getattr(self, name) <= 1:
                problems.append(f"{name}: expected 0 to 1, found {getattr(self, name)}")
        if any(len(pair) != 2 or min(pair) < 0 for pair in self.alignment_heads):
            problems.append("alignment_heads: expected pairs of layer and head, from 0 on")
        return problems + self._beam_problems(vocabulary)

    def _beam_problems(self, vocabulary: int) -> list[str]:
        problems = []
        if not 1 <= self.num_beams <= vocabulary:
            problems.append(
                f"num_beams: expected 1 to {vocabulary}, the vocabulary, found {self.num_beams}"
            )
        if not abs(self.length_penalty) <= LARGEST_LENGTH_PENALTY:
            problems.append(
                f"length_penalty: expected -{LARGEST_LENGTH_PENALTY} to {LARGEST_LENGTH_PENALTY}, "
                f"found {self.length_penalty}"
            )
        if self.do_sample and self.num_beams > 1:
            problems.append(f"do_sample: expected false with {self.num_beams} beams, found true")
        return problems

    @staticmethod
    def _one(token: int | None) -> tuple[int, ...]:
        return () if token is None else (token,)
