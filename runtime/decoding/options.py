"""What a caller may ask of generation: one dataclass, for texts and speech."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypedDict, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError

from ..format.generation_settings import LARGEST_LENGTH_PENALTY, EarlyStopping

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Options = TypeVar("Options", bound="DataclassInstance")

Phrase = str | Sequence[int] | NDArray[np.integer[Any]]
"""A text, or the target token ids of one."""

DEFAULT_BATCH_SIZE = 64


MOST_SAMPLES = 10_000
"""Of one input in one call."""


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
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
        seed: sampling: the same request with the same seed gives the same output, alone and in any
            company; None: another one for each input
        alternatives: how many of the best tokens are reported for each step
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
        source_language, target_language: multilingual text models: codes as the model names
            them; None: the bundle's default
        language: speech: the spoken language, a code or an English name; None: the bundle's
            default, or the language that the model finds most probable
        task: speech: "transcribe", or "translate" to English; None: the bundle's default
        timestamps: speech: whether to generate timestamps; None: the bundle's default. Audio longer
            than a window is decoded with them in any case, since they say where the next window
            begins.

    Raises:
        DragomanError: an option is out of range; lists all.
    """

    max_new_tokens: int | None = None
    max_new_tokens_per_source_token: float = math.inf
    min_new_tokens: int | None = None
    num_beams: int | None = None
    num_return_sequences: int = 1
    length_penalty: float | None = None
    early_stopping: EarlyStopping | None = None
    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    alternatives: int = 0
    prefix: Phrase | None = None
    must_contain: Sequence[Phrase] = ()
    must_not_contain: Sequence[Phrase] = ()
    max_batch_size: int | None = DEFAULT_BATCH_SIZE
    max_batch_tokens: int | None = None
    source_language: str | None = None
    target_language: str | None = None
    language: str | None = None
    task: str | None = None
    timestamps: bool | None = None

    def __post_init__(self) -> None:
        values: dict[str, Any] = vars(self)
        problems = [
            f"{name}: expected {kind.expected}, found {shown(values[name])}"
            for name, kind in KINDS.items()
            if not kind.holds(values[name])
        ]
        if problems:
            raise DragomanError("; ".join(problems))
        if isinstance(values["early_stopping"], np.bool_):
            object.__setattr__(self, "early_stopping", bool(values["early_stopping"]))
        if self.prefix is not None:
            object.__setattr__(self, "prefix", _plain(self.prefix))
        for name in ("must_contain", "must_not_contain"):
            object.__setattr__(self, name, tuple(map(_plain, values[name])))
        problems = list(self._contradictions())
        if problems:
            raise DragomanError("; ".join(problems))

    def _contradictions(self) -> Iterator[str]:
        """Options that exclude each other."""
        shortest, longest = self.min_new_tokens, self.max_new_tokens
        if longest is not None and shortest is not None and shortest > longest:
            yield f"min_new_tokens: expected at most max_new_tokens {longest}, found {shortest}"
        if self.do_sample and (self.num_beams or 1) > 1:
            yield f"num_beams: expected 1, or no do_sample, found {self.num_beams} with do_sample"
        both = [phrase for phrase in self.must_contain if phrase in self.must_not_contain]
        for phrase in both:
            yield f"must_contain: {shown(phrase)} is in must_not_contain, too"

    def replace(self, **changes: Unpack[GenerationKeywords]) -> GenerationOptions:
        """The same options with some changed.

        Raises:
            DragomanError: an option is unknown or out of range.
        """
        return replaced(self, changes)


class GenerationKeywords(TypedDict, total=False):
    """The fields of `GenerationOptions` as keyword arguments."""

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
    source_language: str | None
    target_language: str | None
    language: str | None
    task: str | None
    timestamps: bool | None


class Kind(NamedTuple):
    """What an option may be.

    Attributes:
        expected: in words
        holds: whether a value is one
    """

    expected: str
    holds: Callable[[Any], bool]


def _integer(least: int, *, optional: bool = True) -> Kind:
    return Kind(
        f"an integer of at least {least}",
        lambda v: (optional and v is None) or (is_integer(v) and v >= least),
    )


def _number(words: str, within: Callable[[float], bool]) -> Kind:
    return Kind(
        f"a number{words}",
        lambda v: v is None or (is_number(v) and _has_float(v) and within(v)),
    )


def _has_float(value: Any) -> bool:
    """Integers may be larger than any float."""
    try:
        float(value)
    except OverflowError:
        return False
    return True


def _is_phrase(value: object) -> bool:
    if isinstance(value, str):
        return True
    if not isinstance(value, Sequence | np.ndarray) or isinstance(value, bytes):
        return False
    if isinstance(value, np.ndarray) and value.ndim != 1:
        return False
    return all(is_integer(token) for token in value)


def _plain(phrase: Phrase) -> Phrase:
    """A phrase that can be compared with others; an array cannot."""
    return phrase if isinstance(phrase, str) else tuple(int(token) for token in phrase)


_FLAG = Kind("True, False or None", lambda v: isinstance(v, bool | np.bool_ | None))
_CODE = Kind("a text", lambda v: isinstance(v, str | None))
_PHRASES = Kind(
    "a list of texts or of lists of token ids",
    lambda v: isinstance(v, list | tuple) and all(map(_is_phrase, v)),
)
KINDS: dict[str, Kind] = {
    "max_new_tokens": _integer(1),
    "min_new_tokens": _integer(0),
    # Any number, however large: the least limit counts.
    "max_new_tokens_per_source_token": Kind(
        "a number of more than 0", lambda v: is_number(v) and v > 0
    ),
    "num_beams": _integer(1),
    "num_return_sequences": _integer(1, optional=False),
    "length_penalty": _number(
        f" from -{LARGEST_LENGTH_PENALTY} to {LARGEST_LENGTH_PENALTY}",
        lambda v: abs(v) <= LARGEST_LENGTH_PENALTY,
    ),
    "early_stopping": Kind(
        'True, False, "never" or None',
        lambda v: v == "never" if isinstance(v, str) else isinstance(v, bool | np.bool_ | None),
    ),
    "do_sample": _FLAG,
    "temperature": _number(" in (0, inf)", lambda v: 0 < v < math.inf),
    "top_k": _integer(0),
    "top_p": _number(" of more than 0 and at most 1", lambda v: 0 < v <= 1),
    "min_p": _number(" from 0 to 1", lambda v: 0 <= v <= 1),
    "seed": Kind(
        "an integer of at least 0 and of at most 64 bits",
        lambda v: v is None or (is_integer(v) and 0 <= v < 1 << 64),
    ),
    "alternatives": _integer(0, optional=False),
    "prefix": Kind("a text or a list of token ids", lambda v: v is None or _is_phrase(v)),
    "must_contain": _PHRASES,
    "must_not_contain": _PHRASES,
    "max_batch_size": _integer(1),
    "max_batch_tokens": _integer(1),
    "source_language": _CODE,
    "target_language": _CODE,
    "language": _CODE,
    "task": _CODE,
    "timestamps": _FLAG,
}


class PromptOptions(Protocol):
    """Options of a call that say what a speech model is told."""

    @property
    def language(self) -> str | None: ...

    @property
    def task(self) -> str | None: ...

    @property
    def timestamps(self) -> bool | None: ...


def replaced(options: Options, changes: Mapping[str, Any]) -> Options:
    """Options of a call with some changed by name.

    Raises:
        DragomanError: an option is unknown or out of range.
    """
    known = [field.name for field in dataclasses.fields(options)]
    unknown = [name for name in changes if name not in known]
    if unknown:
        raise DragomanError(
            f"unknown option {', '.join(unknown)}: expected some of {', '.join(known)}"
        )
    return dataclasses.replace(options, **changes)


def shown(value: object) -> str:
    """A value in an error message: on one line, and not whole if it is long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def is_integer(value: object) -> bool:
    """Whether a value is an integer of Python or numpy; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
