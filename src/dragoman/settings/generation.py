"""How tokens are chosen: the settings that a model is published with, and the options of a call.

To add a sampling option, declare it in `GenerationSettings` (if models are published with it), in
`GenerationOptions` and in `GenerationKeywords`. The manifest, the command line, the server's fields
and the checks follow; `runtime.decoding.sampling` computes it.
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
    """The part of decoding that a setting belongs to; rules change scores with any strategy."""

    RULES = "rules"
    STRATEGY = "strategy"
    BEAMS = "beam search"
    SAMPLING = "sampling"
    ALIGNMENT = "alignment"


class TokenIds:
    """Marks a setting of target token ids."""


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
    """How a model is decoded unless the caller says otherwise.

    Names and meanings are those of Hugging Face's generation config.

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
            this power: 0 ranks by the log-probability, and more favours longer ones
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
        """Return the names of the settings of these parts that do not have their default."""
        plain = GenerationSettings
        return [n for n in setting_names(*parts) if getattr(self, n) != getattr(plain, n)]

    @property
    def heads_that_align(self) -> tuple[tuple[int, int], ...]:
        """`alignment_heads` as pairs of layer and head."""
        return tuple((layer, head) for layer, head in self.alignment_heads)

    def with_minimum(self, new_tokens: int | None) -> GenerationSettings:
        """Return the settings with this minimum in place of their own; None: their own."""
        if new_tokens is None:
            return self
        return dataclasses.replace(self, min_new_tokens=new_tokens, min_length=0)

    def end_tokens(self, model_end_token_id: int) -> tuple[int, ...]:
        """Return the tokens that end an output."""
        return (model_end_token_id,) if self.end_token_ids is None else self.end_token_ids

    @property
    def first_free(self) -> int:
        """The number of the first new token that is not forced, counted from 1."""
        return 1 if self.forced_first_token_id is None else 2

    def last_token(self, count: int) -> int | None:
        """Return the token that is forced at the limit, if the count-th new token is there.

        Hugging Face suppresses tokens after it has forced one. If it is the same, no token is left,
        and the argmax is 0.
        """
        suppressed = self.first_suppressed_token_ids if count == self.first_free else ()
        return 0 if self.forced_last_token_id in suppressed else self.forced_last_token_id

    def problems(self, vocabulary: int) -> list[str]:
        """Return the values out of range for a target vocabulary of this size, a line each."""
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
    """The token ids of a setting: one, several, or several sequences of them."""
    if isinstance(value, tuple):
        for item in value:
            yield from _flat(item)
    elif value is not None:
        yield value


def setting_names(*parts: Part, of: type = GenerationSettings) -> list[str]:
    """Return the names of the settings, or of the options of a call, that take part in these."""
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
# Any number, however large: the lower of two limits counts.
_TOKENS_PER_TOKEN = Check(
    "a number of more than 0", lambda v: is_number(v) and v > 0, Bounds("", 0, above=True)
)


@dataclass(frozen=True, kw_only=True)
class GenerationOptions(LanguageOptions):
    """Options of one call of `Model.generate` or `Model.stream`.

    Attributes:
        max_new_tokens: the most tokens to generate for an input, including the end token; for
            speech, for each window. None: the bundle's default.
        max_new_tokens_per_source_token: texts: a limit relative to the source, this many for each
            of its tokens, rounded up. The lower of the two limits holds.
        min_new_tokens: no end token is chosen before this many other tokens; None: the bundle's
            default
        num_beams: beam search with so many beams; 1: greedy search, or sampling. None: the
            bundle's default; 1 with `do_sample`
        num_return_sequences: how many outputs are returned for an input: the best of beams, at most
            `num_beams`, or `MOST_SAMPLES` samples
        length_penalty: beams: hypotheses are ranked by the sum of their log-probabilities over
            length ** length_penalty; None: the bundle's default
        early_stopping: beams: True: end an input with the first `num_beams` hypotheses that end;
            False: when no better one is likely; "never": when no better one is possible. None: the
            bundle's default
        do_sample: draw each token at random; None: the bundle's default
        temperature: sampling: logits are divided by it
        top_k: sampling: draw from this many of the most probable tokens; 0: from all
        top_p: sampling: draw from the most probable tokens that together have this probability
        min_p: sampling: draw from the tokens that have at least this share of the most probable
            one's probability. None for these four: the bundle's default
        seed: sampling: the same request with the same seed gives the same output, whatever else is
            in the batch; None: another seed for each input
        alternatives: how many of the most probable tokens are reported for each step
        prefix: texts: what the output begins with, as text or token ids; its tokens count in
            `max_new_tokens` and `min_new_tokens`, not in scores
        must_contain: phrases that every output must contain, as texts or token ids, each once. It
            needs beams, and takes a multiple of them if all phrases together have as many tokens or
            more (lexically constrained beam search, Post & Vilar 2018). There are fewer outputs
            than `num_return_sequences` if no others contain them
        must_not_contain: phrases that must not occur, with any strategy: texts whatever tokens they
            would consist of, within longer words too; token ids as this very sequence
        max_batch_size: the most sequences decoded together: inputs, times beams; None: as many as a
            GPU has memory for, or `DEFAULT_BATCH_SIZE` on a processor
        max_batch_tokens: the most source tokens decoded together, including padding; None:
            `DEFAULT_BATCH_TOKENS`, for speech `DEFAULT_WINDOWS` windows
        source_language, target_language, language, task, timestamps: see `LanguageOptions`

    Raises:
        DragomanError: an option is out of range; lists all.
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
        """Options that exclude each other, a line each."""
        shortest, longest = self.min_new_tokens, self.max_new_tokens
        if longest is not None and shortest is not None and shortest > longest:
            yield f"min_new_tokens: expected at most max_new_tokens {longest}, found {shortest}"
        if self.do_sample and (self.num_beams or 1) > 1:
            yield f"num_beams: expected 1, or no do_sample, found {self.num_beams} with do_sample"
        both = [phrase for phrase in self.must_contain if phrase in self.must_not_contain]
        for phrase in both:
            yield f"must_contain: {shown(phrase)} is in must_not_contain, too"

    def or_else(self, settings: GenerationSettings, names: Iterable[str]) -> dict[str, Any]:
        """Return options by name, with the model's settings in place of those that are None.

        A name that is no setting of models is left out.
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
    """A phrase that can be compared with others; an array cannot."""
    return phrase if isinstance(phrase, str) else tuple(int(token) for token in phrase)
