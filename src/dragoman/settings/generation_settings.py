"""Generation settings of models: how a model decodes by default."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal

from dragoman.errors import shown

from .fields import LARGEST_FLOAT32, LEFT_OUT, SMALLEST_FLOAT32, Bounds, annotated, wrong_bounds

EarlyStopping = bool | Literal["never"]

LARGEST_LENGTH_PENALTY = 50
"""A million positions to this power still are a number."""


class Part(Enum):
    """The part of decoding that a setting belongs to; rules apply to every strategy."""

    RULES = "rules"
    STRATEGY = "strategy"
    BEAMS = "beam search"
    SAMPLING = "sampling"
    ALIGNMENT = "alignment"


class TokenIds:
    """Marks a setting that holds target token ids."""


TOKENS = TokenIds()
NOT_NEGATIVE = Bounds("at least 0", 0)
POSITIVE_FLOAT32 = Bounds("over 0, in the range of float32", SMALLEST_FLOAT32, LARGEST_FLOAT32)
SHARE = Bounds("0 to 1", 0, 1)
PENALTY_RANGE = Bounds(
    f"-{LARGEST_LENGTH_PENALTY} to {LARGEST_LENGTH_PENALTY}",
    -LARGEST_LENGTH_PENALTY,
    LARGEST_LENGTH_PENALTY,
)


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """The default decoding settings of a model.

    Names and meanings follow Hugging Face's generation config.
    """

    prompt: Annotated[tuple[int, ...], TOKENS] = ()
    """Decoder tokens after the start token, not part of the output. A speech model with languages
    has several prompts; parity is checked with this one."""
    forced_first_token_id: Annotated[int | None, TOKENS, Part.RULES] = None
    """The first new token, whatever the logits (mBART-50, NLLB: the language)."""
    forced_last_token_id: Annotated[int | None, TOKENS, Part.RULES] = None
    """The last new token of an output that reaches its limit."""
    end_token_ids: Annotated[tuple[int, ...] | None, TOKENS] = None
    """Tokens that end an output; empty: only the limit ends it; None: the model's end token."""
    suppressed_token_ids: Annotated[tuple[int, ...], TOKENS, Part.RULES] = ()
    """Tokens that are never selected; the graph's argmax excludes them too."""
    first_suppressed_token_ids: Annotated[tuple[int, ...], TOKENS, Part.RULES] = ()
    """Tokens that are not selected as the first unforced token."""
    bad_words: Annotated[tuple[tuple[int, ...], ...], TOKENS, Part.RULES] = ()
    """Sequences of at least two tokens that must not occur."""
    min_length: Annotated[int, NOT_NEGATIVE, Part.RULES] = 0
    """Minimum number of tokens of start token, prompt and output before an end token."""
    min_new_tokens: Annotated[int, NOT_NEGATIVE, Part.RULES] = 0
    """Minimum number of new tokens before an end token."""
    no_repeat_ngram_size: Annotated[int, NOT_NEGATIVE, Part.RULES] = 0
    """Size of n-grams that must not repeat; 0: off."""
    encoder_no_repeat_ngram_size: Annotated[int, NOT_NEGATIVE, Part.RULES] = 0
    """Size of n-grams of the source that must not occur in the output; 0: off."""
    repetition_penalty: Annotated[float, POSITIVE_FLOAT32, Part.RULES] = 1.0
    """Divisor of positive, and factor of negative, logits of tokens that have occurred (Keskar et
    al. 2019, section 4.1)."""
    renormalize_logits: Annotated[bool, Part.RULES, LEFT_OUT] = False
    """Whether the probabilities of the tokens that all rules allow add up to 1, which changes the
    scores of hypotheses."""
    num_beams: Annotated[int, Part.STRATEGY, LEFT_OUT] = 1
    """Number of beams; 1: no beam search."""
    length_penalty: Annotated[float, PENALTY_RANGE, Part.BEAMS, LEFT_OUT] = 1.0
    """Exponent of the length by which the log-probability of a hypothesis is divided; 0: none,
    higher values favour longer outputs."""
    early_stopping: Annotated[EarlyStopping, Part.BEAMS, LEFT_OUT] = False
    """Beam search ends with `num_beams` finished hypotheses (True), or when the best unfinished one
    ranks below them at its current length (False) or its most favourable length ("never")."""
    do_sample: Annotated[bool, Part.STRATEGY, LEFT_OUT] = False
    """Whether to sample; not with beams."""
    temperature: Annotated[float, POSITIVE_FLOAT32, Part.SAMPLING, LEFT_OUT] = 1.0
    """Divisor of the logits before sampling."""
    top_k: Annotated[int, NOT_NEGATIVE, Part.SAMPLING, LEFT_OUT] = 0
    """Number of most probable tokens to sample from; 0: all."""
    top_p: Annotated[float, SHARE, Part.SAMPLING, LEFT_OUT] = 1.0
    """Minimum total probability of the smallest set of most probable tokens to sample from; 1: all
    tokens."""
    min_p: Annotated[float, SHARE, Part.SAMPLING, LEFT_OUT] = 0.0
    """Minimum probability of a token to sample, relative to the most probable token; 0: all tokens.
    """
    alignment_heads: Annotated[tuple[tuple[int, ...], ...], Part.ALIGNMENT, LEFT_OUT] = ()
    """Layer and head, from 0, of each cross-attention that aligns words; empty: unknown."""

    def changed(self, *parts: Part) -> list[str]:
        """Return the names of the settings of these parts that differ from their defaults."""
        plain = GenerationSettings
        return [n for n in setting_names(*parts) if getattr(self, n) != getattr(plain, n)]

    @property
    def heads_that_align(self) -> tuple[tuple[int, int], ...]:
        """`alignment_heads` as pairs of layer and head."""
        return tuple((layer, head) for layer, head in self.alignment_heads)

    def end_tokens(self, model_end_token_id: int) -> tuple[int, ...]:
        """Return the tokens that end an output."""
        return (model_end_token_id,) if self.end_token_ids is None else self.end_token_ids

    @property
    def first_free(self) -> int:
        """Position, from 1, of the first new token that is not forced."""
        return 1 if self.forced_first_token_id is None else 2

    def last_token(self, count: int) -> int | None:
        """Return the forced last token if the count-th new token is the last.

        Hugging Face suppresses tokens after forcing one; if none is left, the argmax is 0.
        """
        suppressed = self.first_suppressed_token_ids if count == self.first_free else ()
        return 0 if self.forced_last_token_id in suppressed else self.forced_last_token_id

    def problems(self, vocabulary: int) -> list[str]:
        """Return the values out of range for a target vocabulary of this size, one line each."""
        problems = [
            f"{name}: expected token ids in [0, {vocabulary}), found {shown(token)}"
            for name in annotated(GenerationSettings, TokenIds)
            for token in _flat(getattr(self, name))
            if not 0 <= token < vocabulary
        ]
        problems += [
            f"bad_words: expected words of at least two tokens, found {shown(list(word))}"
            for word in self.bad_words
            if len(word) < 2
        ]
        problems += wrong_bounds(self)
        if any(len(pair) != 2 or min(pair) < 0 for pair in self.alignment_heads):
            problems.append("alignment_heads: expected pairs of layer and head, from 0 on")
        if not 1 <= self.num_beams <= vocabulary:
            problems.append(
                f"num_beams: expected 1 to {vocabulary}, the vocabulary, found {self.num_beams}"
            )
        if self.do_sample and self.num_beams > 1:
            problems.append(f"do_sample: expected false with {self.num_beams} beams, found true")
        return problems


def _flat(value: Any) -> Iterator[int]:
    if isinstance(value, tuple):
        for item in value:
            yield from _flat(item)
    elif value is not None:
        yield value


def setting_names(*parts: Part, of: type = GenerationSettings) -> list[str]:
    """Return the names of the settings, or options of a call, of these parts."""
    return [name for name, part in annotated(of, Part).items() if part in parts]
