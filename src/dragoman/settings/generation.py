"""Generation settings of models, and generation options of calls.

To add a sampling option, declare it in `GenerationSettings` (if models define it), in
`GenerationOptions` and in `GenerationKeywords`, and implement it in `runtime.decoding.sampling`.
The manifest, the command line, the server's fields and the checks follow.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

from dragoman.errors import DragomanError

from .fields import (
    FLAG,
    LARGEST_FLOAT32,
    LEFT_OUT,
    SMALLEST_FLOAT32,
    Bounds,
    Check,
    CommandOption,
    annotated,
    integer,
    is_flag,
    is_integer,
    is_number,
    is_token_ids,
    number,
    replaced,
    shown,
    unwrapped,
    wrong_bounds,
    wrong_fields,
)
from .speech import LanguageKeywords, LanguageOptions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Phrase = str | Sequence[int] | NDArray[np.integer[Any]]
    """A text, or the target token ids of one."""
else:
    Phrase = str | Sequence[int]

EarlyStopping = bool | Literal["never"]

LARGEST_LENGTH_PENALTY = 50
"""A million positions to this power still are a number."""

DEFAULT_BATCH_SIZE = 64

MOST_SAMPLES = 10_000
"""The most samples of one input in one call."""


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

    Attributes:
        prompt: decoder tokens after the start token, not part of the output. A speech model with
            languages has several prompts; parity is checked with this one.
        forced_first_token_id: the first new token, whatever the logits (mBART-50, NLLB: the
            language)
        forced_last_token_id: the last new token of an output that reaches its limit
        end_token_ids: tokens that end an output; empty: only the limit ends it; None: the model's
            end token
        suppressed_token_ids: tokens that are never selected; the graph's argmax excludes them too
        first_suppressed_token_ids: tokens that are not selected as the first unforced token
        bad_words: sequences of at least two tokens that must not occur
        min_length: minimum number of tokens of start token, prompt and output before an end token
        min_new_tokens: minimum number of new tokens before an end token
        no_repeat_ngram_size: size of n-grams that must not repeat; 0: off
        encoder_no_repeat_ngram_size: size of n-grams of the source that must not occur in the
            output; 0: off
        repetition_penalty: divisor of positive, and factor of negative, logits of tokens that have
            occurred (Keskar et al. 2019, section 4.1)
        num_beams: number of beams; 1: no beam search
        length_penalty: exponent of the length by which the log-probability of a hypothesis is
            divided; 0: none, higher values favour longer outputs
        early_stopping: beam search ends with `num_beams` finished hypotheses (True), or when the
            best unfinished one ranks below them at its current length (False) or its most
            favourable length ("never")
        do_sample: whether to sample; not with beams
        temperature: divisor of the logits before sampling
        top_k: number of most probable tokens to sample from; 0: all
        top_p: minimum total probability of the smallest set of most probable tokens to sample
            from; 1: all tokens
        min_p: minimum probability of a token to sample, relative to the most probable token; 0: all
            tokens
        alignment_heads: layer and head, from 0, of each cross-attention that aligns words; empty:
            unknown
    """

    prompt: Annotated[tuple[int, ...], TOKENS] = ()
    forced_first_token_id: Annotated[int | None, TOKENS, Part.RULES] = None
    forced_last_token_id: Annotated[int | None, TOKENS, Part.RULES] = None
    end_token_ids: Annotated[tuple[int, ...] | None, TOKENS] = None
    suppressed_token_ids: Annotated[tuple[int, ...], TOKENS, Part.RULES] = ()
    first_suppressed_token_ids: Annotated[tuple[int, ...], TOKENS, Part.RULES] = ()
    bad_words: Annotated[tuple[tuple[int, ...], ...], TOKENS, Part.RULES] = ()
    min_length: Annotated[int, NOT_NEGATIVE, Part.RULES] = 0
    min_new_tokens: Annotated[int, NOT_NEGATIVE, Part.RULES] = 0
    no_repeat_ngram_size: Annotated[int, NOT_NEGATIVE, Part.RULES] = 0
    encoder_no_repeat_ngram_size: Annotated[int, NOT_NEGATIVE, Part.RULES] = 0
    repetition_penalty: Annotated[float, POSITIVE_FLOAT32, Part.RULES] = 1.0
    num_beams: Annotated[int, Part.STRATEGY, LEFT_OUT] = 1
    length_penalty: Annotated[float, PENALTY_RANGE, Part.BEAMS, LEFT_OUT] = 1.0
    early_stopping: Annotated[EarlyStopping, Part.BEAMS, LEFT_OUT] = False
    do_sample: Annotated[bool, Part.STRATEGY, LEFT_OUT] = False
    temperature: Annotated[float, POSITIVE_FLOAT32, Part.SAMPLING, LEFT_OUT] = 1.0
    top_k: Annotated[int, NOT_NEGATIVE, Part.SAMPLING, LEFT_OUT] = 0
    top_p: Annotated[float, SHARE, Part.SAMPLING, LEFT_OUT] = 1.0
    min_p: Annotated[float, SHARE, Part.SAMPLING, LEFT_OUT] = 0.0
    alignment_heads: Annotated[tuple[tuple[int, ...], ...], Part.ALIGNMENT, LEFT_OUT] = ()

    def changed(self, *parts: Part) -> list[str]:
        """Return the names of the settings of these parts that differ from their defaults."""
        plain = GenerationSettings
        return [n for n in setting_names(*parts) if getattr(self, n) != getattr(plain, n)]

    @property
    def heads_that_align(self) -> tuple[tuple[int, int], ...]:
        """`alignment_heads` as pairs of layer and head."""
        return tuple((layer, head) for layer, head in self.alignment_heads)

    def with_minimum(self, new_tokens: int | None) -> GenerationSettings:
        """Return the settings with another `min_new_tokens`; None: unchanged."""
        if new_tokens is None:
            return self
        return dataclasses.replace(self, min_new_tokens=new_tokens, min_length=0)

    def end_tokens(self, model_end_token_id: int) -> tuple[int, ...]:
        """Return the tokens that end an output."""
        return (model_end_token_id,) if self.end_token_ids is None else self.end_token_ids

    @property
    def first_free(self) -> int:
        """Position, from 1, of the first new token that is not forced."""
        return 1 if self.forced_first_token_id is None else 2

    def last_token(self, count: int) -> int | None:
        """Return the forced last token if the count-th new token is the last.

        Hugging Face suppresses tokens after forcing one. If the forced token is suppressed, none is
        left, and the argmax is 0.
        """
        suppressed = self.first_suppressed_token_ids if count == self.first_free else ()
        return 0 if self.forced_last_token_id in suppressed else self.forced_last_token_id

    def problems(self, vocabulary: int) -> list[str]:
        """Return the values out of range for a target vocabulary of this size, one line each."""
        problems = [
            f"{name}: expected token ids in [0, {vocabulary}), found {token}"
            for name in annotated(GenerationSettings, TokenIds)
            for token in _flat(getattr(self, name))
            if not 0 <= token < vocabulary
        ]
        problems += [
            f"bad_words: expected words of at least two tokens, found {list(word)}"
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
    """Yield the token ids of a setting: one, several, or several sequences."""
    if isinstance(value, tuple):
        for item in value:
            yield from _flat(item)
    elif value is not None:
        yield value


def setting_names(*parts: Part, of: type = GenerationSettings) -> list[str]:
    """Return the names of the settings, or options of a call, of these parts."""
    return [name for name, part in annotated(of, Part).items() if part in parts]


_TOP_P = Bounds("", 0, 1, above=True)
_PHRASE = Check("a text or a list of token ids", lambda v: v is None or _is_phrase(v))
_PHRASES = Check(
    "a list of texts or of lists of token ids",
    lambda v: isinstance(v, list | tuple) and all(map(_is_phrase, v)),
)
_SEED = Check(
    "an integer of at least 0 and of at most 64 bits",
    lambda v: v is None or (is_integer(v) and 0 <= v < 1 << 64),
)
_EARLY_STOPPING = Check(
    'True, False, "never" or None',
    lambda v: v == "never" if isinstance(v, str) else v is None or is_flag(v),
)
# No upper bound: the lower of two limits applies.
_TOKENS_PER_TOKEN = Check(
    "a number of more than 0", lambda v: is_number(v) and v > 0, Bounds("", 0, above=True)
)


@dataclass(frozen=True, kw_only=True)
class GenerationOptions(LanguageOptions):
    """Options of one call of `Model.generate` or `Model.stream`.

    Attributes:
        max_new_tokens: maximum tokens to generate per input, or per window of speech, including the
            end token; None: the bundle's default
        max_new_tokens_per_source_token: texts: maximum tokens to generate per source token, rounded
            up; the lower of the two limits applies
        min_new_tokens: minimum new tokens before an end token; None: the bundle's default
        num_beams: number of beams; 1: greedy search or sampling; None: 1 with `do_sample`, else the
            bundle's default
        num_return_sequences: number of outputs per input: at most `num_beams` beams, or
            `MOST_SAMPLES` samples
        length_penalty: beams: hypotheses are ranked by log-probability / length **
            length_penalty; None: the bundle's default
        early_stopping: beams: search ends with `num_beams` finished hypotheses (True), when no
            better one is likely (False), or when no better one is possible ("never"); None: the
            bundle's default
        do_sample: whether to sample; None: the bundle's default
        temperature: sampling: divisor of the logits
        top_k: sampling: number of most probable tokens to sample from; 0: all
        top_p: sampling: total probability of the most probable tokens to sample from
        min_p: sampling: minimum probability relative to the most probable token. For these four,
            None: the bundle's default
        seed: sampling: random seed; outputs are reproducible and batch-invariant; None: a random
            seed per input
        alternatives: number of most probable tokens to report for each step
        prefix: texts: forced beginning of the output, as text or token ids; its tokens count in
            `max_new_tokens` and `min_new_tokens`, not in scores
        must_contain: phrases that every output must contain, as texts or token ids (lexically
            constrained beam search, Post & Vilar 2018). Requires beams, and uses a multiple of
            `num_beams` if the phrases have at least as many tokens. May return fewer outputs than
            `num_return_sequences`
        must_not_contain: phrases that must not occur, with any strategy; texts are matched in any
            tokenization and within words, token ids as an exact sequence
        max_batch_size: maximum sequences per batch, counting beams; None: as many as fit into GPU
            memory, or `DEFAULT_BATCH_SIZE` on a processor
        max_batch_tokens: maximum source tokens per batch, including padding; None:
            `DEFAULT_BATCH_TOKENS`, for speech `DEFAULT_WINDOWS` windows
        source_language, target_language, language, task, timestamps: see `LanguageOptions`

    Raises:
        DragomanError: options are out of range; the error lists all.
    """

    max_new_tokens: Annotated[
        int | None,
        integer(1),
        CommandOption("content", "At most N new tokens for each line [the bundle's]."),
    ] = None
    max_new_tokens_per_source_token: Annotated[
        float,
        _TOKENS_PER_TOKEN,
        CommandOption("content", "At most X new tokens for each source token."),
    ] = math.inf
    min_new_tokens: Annotated[
        int | None,
        integer(0),
        CommandOption("content", "At least N new tokens before the end token [the bundle's]."),
    ] = None
    num_beams: Annotated[
        int | None,
        integer(1),
        Part.STRATEGY,
        CommandOption(
            "search", "Beam search with N beams; 1: greedy search or sampling.", "--beams"
        ),
    ] = None
    num_return_sequences: Annotated[
        int,
        integer(1, optional=False),
        CommandOption("output", "Write N outputs for each line: beams, samples.", "--n-best"),
    ] = 1
    length_penalty: Annotated[
        float | None,
        number(f" from {PENALTY_RANGE.words}", None, PENALTY_RANGE.hold),
        Part.BEAMS,
        CommandOption("search", "Beams: rank by log-probability / length ** X."),
    ] = None
    early_stopping: Annotated[
        EarlyStopping | None,
        _EARLY_STOPPING,
        Part.BEAMS,
        CommandOption(
            "search",
            "Beams: stop at N outputs (true), or search on (false, never).",
            metavar="WHEN",
        ),
    ] = None
    do_sample: Annotated[
        bool | None,
        FLAG,
        Part.STRATEGY,
        CommandOption(
            "search", "Draw tokens at random, as the next options say.", "--sample/--no-sample"
        ),
    ] = None
    temperature: Annotated[
        float | None,
        number(" in (0, inf)", Bounds("", 0, above=True), _is_positive),
        Part.SAMPLING,
        CommandOption("search", "Divide logits by X; below 1: closer to greedy search."),
    ] = None
    top_k: Annotated[
        int | None,
        integer(0),
        Part.SAMPLING,
        CommandOption("search", "Draw from the N most probable tokens; 0: from all."),
    ] = None
    top_p: Annotated[
        float | None,
        number(" of more than 0 and at most 1", _TOP_P, _TOP_P.hold),
        Part.SAMPLING,
        CommandOption("search", "Draw from the most probable tokens that sum up to X."),
    ] = None
    min_p: Annotated[
        float | None,
        number(" from 0 to 1", SHARE, SHARE.hold),
        Part.SAMPLING,
        CommandOption("search", "Drop tokens below X times the highest probability."),
    ] = None
    seed: Annotated[
        int | None,
        _SEED,
        Part.SAMPLING,
        CommandOption("search", "Draw the same tokens in every run with this seed."),
    ] = None
    alternatives: Annotated[
        int,
        integer(0, optional=False),
        CommandOption(
            "output", "With --json: the K most probable tokens of each step.", metavar="K"
        ),
    ] = 0
    prefix: Annotated[
        Phrase | None,
        _PHRASE,
        CommandOption("content", "Begin every output with this text.", metavar="TEXT"),
    ] = None
    must_contain: Annotated[
        Sequence[Phrase],
        _PHRASES,
        CommandOption("content", "Beams: generate this text in every output; repeatable."),
    ] = ()
    must_not_contain: Annotated[
        Sequence[Phrase],
        _PHRASES,
        CommandOption("content", "Never generate this text; repeatable."),
    ] = ()
    max_batch_size: Annotated[
        int | None,
        integer(1),
        CommandOption(
            "options",
            "Sequences (lines x beams) to decode at once [64]; or auto.",
            "--batch-size",
            metavar="N|auto",
        ),
    ] = DEFAULT_BATCH_SIZE
    max_batch_tokens: Annotated[int | None, integer(1)] = None

    def __post_init__(self) -> None:
        problems = wrong_fields(self)
        if problems:
            raise DragomanError("; ".join(problems))
        object.__setattr__(self, "early_stopping", unwrapped(self.early_stopping))
        if self.prefix is not None:
            object.__setattr__(self, "prefix", _comparable(self.prefix))
        for name in ("must_contain", "must_not_contain"):
            object.__setattr__(self, name, tuple(map(_comparable, getattr(self, name))))
        problems = list(self._contradictions())
        if problems:
            raise DragomanError("; ".join(problems))

    def _contradictions(self) -> Iterator[str]:
        """Yield a line for each pair of options that exclude each other."""
        shortest, longest = self.min_new_tokens, self.max_new_tokens
        if longest is not None and shortest is not None and shortest > longest:
            yield f"min_new_tokens: expected at most max_new_tokens {longest}, found {shortest}"
        if self.do_sample and (self.num_beams or 1) > 1:
            yield f"num_beams: expected 1, or no do_sample, found {self.num_beams} with do_sample"
        both = [phrase for phrase in self.must_contain if phrase in self.must_not_contain]
        for phrase in both:
            yield f"must_contain: {shown(phrase)} is in must_not_contain, too"

    def or_else(self, settings: GenerationSettings, names: Iterable[str]) -> dict[str, Any]:
        """Return options by name; the model's settings replace None.

        Names that are not model settings are omitted.
        """
        found = {}
        for name in names:
            if hasattr(settings, name):
                default, value = getattr(settings, name), getattr(self, name)
                value = default if value is None else value
                found[name] = float(value) if isinstance(default, float) else value
        return found

    def replace(self, **changes: Unpack[GenerationKeywords]) -> GenerationOptions:
        """Return the options with some changed.

        Raises:
            DragomanError: an option is unknown or out of range.
        """
        return replaced(self, changes)


class GenerationKeywords(LanguageKeywords, total=False):
    """The fields of `GenerationOptions` as keyword arguments, for type checkers and editors."""

    max_new_tokens: int | None
    max_new_tokens_per_source_token: float
    min_new_tokens: int | None
    num_beams: int | None
    num_return_sequences: int
    length_penalty: float | None
    early_stopping: EarlyStopping | None
    do_sample: bool | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None
    alternatives: int
    prefix: Phrase | None
    must_contain: Sequence[Phrase]
    must_not_contain: Sequence[Phrase]
    max_batch_size: int | None
    max_batch_tokens: int | None
    timestamps: bool | None


def _is_positive(value: float) -> bool:
    return 0 < value < math.inf


def _is_phrase(value: object) -> bool:
    return isinstance(value, str) or is_token_ids(value)


def _comparable(phrase: Phrase) -> Phrase:
    """Return a phrase in a form that supports ==, unlike an array."""
    return phrase if isinstance(phrase, str) else tuple(int(token) for token in phrase)
