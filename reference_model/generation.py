"""What a model's publisher says of greedy decoding beyond the argmax."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Speech:
    """What Whisper is told by the tokens of its prompt (Radford et al. 2022, section 2.3).

    Attributes:
        languages: language code -> token; empty: the model knows one language and is not told it
        tasks: "transcribe" and "translate" -> token; empty: it is not told a task
        no_timestamps_token_id: the last token of a prompt that asks for text alone; the tokens of
            times follow it in the vocabulary. None: the model has none.
        max_initial_timestamp_index: the latest first time, in steps of 0.02 s; None: any
        default_language: a code; None: what the model finds most probable
        default_task: None: as Hugging Face has it, a given language is transcribed, and with a
            language that is found the prompt says no task
    """

    languages: dict[str, int] = field(default_factory=dict)
    tasks: dict[str, int] = field(default_factory=dict)
    no_timestamps_token_id: int | None = None
    max_initial_timestamp_index: int | None = None
    default_language: str | None = None
    default_task: str | None = None


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """Rules of greedy decoding; the names are those of Hugging Face's generation settings.

    Attributes:
        prompt: tokens that the decoder is given after the start token; not part of the output. Of
            a speech model with languages: one of the prompts that there are.
        forced_first_token_id: the first new token, whatever the logits (mBART-50, NLLB: the
            language)
        forced_last_token_id: the new token with which an output reaches its limit
        suppressed_token_ids: never chosen
        first_suppressed_token_ids: not chosen as the first token that is not forced
        min_new_tokens: the end token is not chosen before so many new tokens
        no_repeat_ngram_size: no run of so many tokens occurs twice; 0: it may
        repetition_penalty: logits of tokens that occurred are divided by it where they are
            positive, multiplied where negative (Keskar et al. 2019, section 4.1)
        max_new_tokens: the most tokens to generate unless told otherwise; None: not said
        speech: what prompts of a speech model are made of; None: not said, or no speech model
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
        """Whether every token is the argmax of all."""
        return self == GenerationConfig(
            prompt=self.prompt, max_new_tokens=self.max_new_tokens, speech=self.speech
        )

    def scores(
        self, logits: Tensor, given: list[int], new: list[int], *, end_token_id: int, limit: int
    ) -> Tensor:
        """Logits [V] of the next token of one sequence as the rules leave them: minus infinity at
        tokens that they forbid. The greedy choice is the largest.

        Args:
            logits: [V]
            given: start token and prompt
            new: tokens generated so far
            limit: the most new tokens
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
        tokens = given + new
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
        """Tokens that would end an n-gram that was there before."""
        size = self.no_repeat_ngram_size
        if not size or len(tokens) < size:
            return set()
        ending = tokens[len(tokens) - size + 1 :]
        ngrams = [tokens[i : i + size] for i in range(len(tokens) - size + 1)]
        return {ngram[-1] for ngram in ngrams if ngram[:-1] == ending}
