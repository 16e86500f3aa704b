"""Generation settings that a model was published with, as plain data."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """What decides a greedy choice beside the argmax; names as in Hugging Face's generation config.

    Attributes:
        prompt: tokens that follow the start token in the decoder's input; not part of the output.
            A speech model with languages has several prompts; parity is checked with this one.
        forced_first_token_id: the first new token, whatever the logits (mBART-50, NLLB: the
            language)
        forced_last_token_id: the last new token of an output that reaches its limit
        suppressed_token_ids: never chosen; the graph's own choice excludes them too
        first_suppressed_token_ids: not chosen as the first token that is not forced
        min_new_tokens: the end token is not chosen before this many new tokens
        no_repeat_ngram_size: no n-gram of this size occurs twice; 0: no limit
        repetition_penalty: positive logits of tokens that occurred are divided by it, negative
            ones multiplied (Keskar et al. 2019, section 4.1)
    """

    prompt: tuple[int, ...] = ()
    forced_first_token_id: int | None = None
    forced_last_token_id: int | None = None
    suppressed_token_ids: tuple[int, ...] = ()
    first_suppressed_token_ids: tuple[int, ...] = ()
    min_new_tokens: int = 0
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0

    def with_minimum(self, new_tokens: int) -> GenerationSettings:
        """The same, with at least this many new tokens before the end token."""
        return dataclasses.replace(self, min_new_tokens=max(self.min_new_tokens, new_tokens))

    def problems(self, vocabulary: int) -> list[str]:
        """Values out of range for a target vocabulary of this size, a line each."""
        ids = {
            "prompt": self.prompt,
            "forced_first_token_id": self._one(self.forced_first_token_id),
            "forced_last_token_id": self._one(self.forced_last_token_id),
            "suppressed_token_ids": self.suppressed_token_ids,
            "first_suppressed_token_ids": self.first_suppressed_token_ids,
        }
        problems = [
            f"{name}: expected token ids in [0, {vocabulary}), found {token}"
            for name, tokens in ids.items()
            for token in tokens
            if not 0 <= token < vocabulary
        ]
        for name in ("min_new_tokens", "no_repeat_ngram_size"):
            if getattr(self, name) < 0:
                problems.append(f"{name}: expected at least 0, found {getattr(self, name)}")
        if not 0 < self.repetition_penalty < math.inf:
            problems.append(f"repetition_penalty: expected over 0, found {self.repetition_penalty}")
        return problems

    @staticmethod
    def _one(token: int | None) -> tuple[int, ...]:
        return () if token is None else (token,)
