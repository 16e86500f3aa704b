"""Generation options of calls.

To add an option, declare it in `GenerationSettings` (if models define it), `GenerationOptions` and
`GenerationKeywords`, and implement it in `runtime.decoding`. Everything else follows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from dragoman.errors import DragomanError, shown

from .fields import (
    FLAG,
    SWITCH,
    TEXT,
    Bounds,
    Check,
    CommandOption,
    integer,
    is_flag,
    is_integer,
    is_number,
    is_token_ids,
    number,
    replaced,
    unwrapped,
    wrong_fields,
)
from .generation_settings import (
    PENALTY_RANGE,
    POSITIVE_FLOAT32,
    SHARE,
    EarlyStopping,
    GenerationSettings,
    Part,
    setting_names,
)
from .speech import TranscriptionKeywords, TranscriptionOptions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Phrase = str | Sequence[int] | NDArray[np.integer[Any]]
    """A text, or the target token ids of one."""
else:
    Phrase = str | Sequence[int]

DEFAULT_BATCH_SIZE = 64

MOST_SAMPLES = 10_000
"""The most samples of one input in one call."""


_TOP_P = Bounds("", 0, 1, above=True)
_PHRASE = Check("a text or a list of token ids", lambda v: v is None or _is_phrase(v))
_PHRASES = Check(
    "a list of texts or of lists of token ids",
    lambda v: isinstance(v, list | tuple) and all(map(_is_phrase, v)),
)
_END_TOKENS = Check(
    "a token id, the token as the vocabulary spells it, or a list of them",
    lambda v: v is None or all(map(_is_token, _listed(v))),
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
class GenerationOptions(TranscriptionOptions):
    """Options of one call of `Model.generate` or `Model.stream`.

    Raises:
        DragomanError: options are out of range; the error lists all.
    """

    max_new_tokens: Annotated[
        int | None,
        integer(1),
        CommandOption("content", "At most N new tokens for each line [the bundle's]."),
    ] = None
    """Maximum tokens to generate per input, or per window of speech, including the end token; None:
    the bundle's default."""
    max_new_tokens_per_source_token: Annotated[
        float,
        _TOKENS_PER_TOKEN,
        CommandOption("content", "At most X new tokens for each source token.", hidden=True),
    ] = math.inf
    """Texts: maximum tokens to generate per source token, rounded up; the lower of the two limits
    applies."""
    min_new_tokens: Annotated[
        int | None,
        integer(0),
        Part.RULES,
        CommandOption("content", "At least N new tokens before the end [the bundle's]."),
    ] = None
    """Minimum new tokens before an end token; None: the bundle's default."""
    end_token_id: Annotated[
        int | str | Sequence[int | str] | None,
        _END_TOKENS,
        CommandOption(
            "content",
            "End outputs with this token [the bundle's]; repeatable.",
            "--end-token",
            metavar="ID|TOKEN",
        ),
    ] = None
    """The token that ends an output, as an id or as the vocabulary spells it, or several; stored as
    a tuple. Empty: only the limit ends an output; None: the bundle's default."""
    repetition_penalty: Annotated[
        float | None,
        number(f" {POSITIVE_FLOAT32.words}", Bounds("", 0, above=True), POSITIVE_FLOAT32.hold),
        Part.RULES,
        CommandOption("content", "Divide scores of tokens that have occurred by X; 1: off."),
    ] = None
    """Divisor of positive, and factor of negative, scores of tokens that have occurred; 1: off;
    None: the bundle's default."""
    no_repeat_ngram_size: Annotated[
        int | None,
        integer(0),
        Part.RULES,
        CommandOption("content", "No N tokens occur twice in a row; 0: off."),
    ] = None
    """Size of n-grams that must not repeat; 0: off; None: the bundle's default."""
    renormalize_logits: Annotated[
        bool | None,
        FLAG,
        Part.RULES,
        CommandOption("output", "Scores count allowed tokens only [the bundle's].", hidden=True),
    ] = None
    """Whether scores are those of distributions over the tokens that all rules allow; otherwise
    forbidden tokens keep their share, see `Hypothesis.score`; None: the bundle's default."""
    shortlist: Annotated[
        bool,
        SWITCH,
        CommandOption(
            "content",
            "Decode with the whole vocabulary, not the bundle's shortlist.",
            "--no-shortlist",
            sets=False,
            hidden=True,
        ),
    ] = True
    """Texts: whether an output has only tokens that the bundle's shortlist allows for its source;
    without effect if the bundle has none."""
    truncate: Annotated[
        bool,
        SWITCH,
        CommandOption("content", "Cut sources that are too long, instead of rejecting them."),
    ] = False
    """Texts: whether a source that is too long is cut at its end, as the checkpoint's tokenizer
    does, special tokens kept; otherwise it is rejected."""
    split: Annotated[
        bool,
        SWITCH,
        CommandOption("content", "Translate each sentence of a line by itself.", sets=True),
    ] = False
    """Texts: whether each text is split into sentences, which are decoded at once, and whose
    outputs are joined with the white space, line breaks and list markers of the text. Line breaks
    end sentences. A sentence that is too long is cut, and a warning says so. Limits of tokens and
    forbidden phrases apply to each sentence. The n-th output has the n-th of each sentence; scores
    and log-probabilities are sums. `tokens` are those of all sentences, with the end tokens between
    them. A text with a sentence that cannot be decoded is rejected. Excludes streams, `prefix` and
    `must_contain`."""
    split_language: Annotated[
        str | None,
        TEXT,
        CommandOption(
            "content", "With --split: the language of the sentences.", metavar="CODE", hidden=True
        ),
    ] = None
    """With `split`: the language whose rules find sentences, such as "de"; None: `source_language`,
    or that of the bundle, or English."""
    num_beams: Annotated[
        int | None,
        integer(1),
        Part.STRATEGY,
        CommandOption(
            "search", "Beam search with N beams; 1: greedy search or sampling.", "--beams"
        ),
    ] = None
    """Number of beams; 1: greedy search or sampling; None: 1 with `do_sample`, else the bundle's
    default."""
    num_return_sequences: Annotated[
        int,
        integer(1, optional=False),
        CommandOption("output", "Write N outputs for each line: beams, samples.", "--n-best"),
    ] = 1
    """Number of outputs per input: at most `num_beams` beams, or `MOST_SAMPLES` samples."""
    length_penalty: Annotated[
        float | None,
        number(f" from {PENALTY_RANGE.words}", None, PENALTY_RANGE.hold),
        Part.BEAMS,
        CommandOption("search", "Beams: rank by log-probability / length ** X."),
    ] = None
    """Beams: hypotheses are ranked by log-probability / length ** length_penalty; None: the
    bundle's default."""
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
    """Beams: search ends with `num_beams` finished hypotheses (True), when no better one is likely
    (False), or when no better one is possible ("never"); None: the bundle's default."""
    do_sample: Annotated[
        bool | None,
        FLAG,
        Part.STRATEGY,
        CommandOption(
            "search", "Draw tokens at random, as the next options say.", "--sample/--no-sample"
        ),
    ] = None
    """Whether to sample; None: the bundle's default."""
    temperature: Annotated[
        float | None,
        number(" in [0, inf)", Bounds("", 0), _is_finite),
        Part.SAMPLING,
        CommandOption("search", "Divide logits by X; 0: greedy search."),
    ] = None
    """Sampling: divisor of the logits; 0: greedy search; None: the bundle's default."""
    top_k: Annotated[
        int | None,
        integer(0),
        Part.SAMPLING,
        CommandOption("search", "Draw from the N most probable tokens; 0: from all."),
    ] = None
    """Sampling: number of most probable tokens to sample from; 0: all; None: the bundle's
    default."""
    top_p: Annotated[
        float | None,
        number(" of more than 0 and at most 1", _TOP_P, _TOP_P.hold),
        Part.SAMPLING,
        CommandOption("search", "Draw from the most probable tokens that sum up to X."),
    ] = None
    """Sampling: total probability of the most probable tokens to sample from; None: the bundle's
    default."""
    min_p: Annotated[
        float | None,
        number(" from 0 to 1", SHARE, SHARE.hold),
        Part.SAMPLING,
        CommandOption("search", "Drop tokens below X times the highest probability."),
    ] = None
    """Sampling: minimum probability relative to the most probable token; None: the bundle's
    default."""
    seed: Annotated[
        int | None,
        _SEED,
        Part.SAMPLING,
        CommandOption("search", "Draw the same tokens in every run with this seed."),
    ] = None
    """Sampling: random seed; outputs are reproducible and batch-invariant; None: a random seed per
    input."""
    alternatives: Annotated[
        int,
        integer(0, optional=False),
        CommandOption(
            "output", "With --json: the K most probable tokens of each step.", metavar="K"
        ),
    ] = 0
    """Number of most probable tokens to report for each step."""
    prefix: Annotated[
        Phrase | None,
        _PHRASE,
        CommandOption("content", "Begin every output with this text.", metavar="TEXT"),
    ] = None
    """Forced beginning of the output, as text or token ids, for speech of its first window; its
    tokens count in `max_new_tokens`, for texts in `min_new_tokens`, not in scores; None or no token
    ids: none."""
    must_contain: Annotated[
        Sequence[Phrase],
        _PHRASES,
        CommandOption("content", "Beams: generate this text in every output; repeatable."),
    ] = ()
    """Phrases that every output must contain, as texts or token ids (lexically constrained beam
    search, Post & Vilar 2018). Requires beams, and uses a multiple of `num_beams` if the phrases
    have at least as many tokens. May return fewer outputs than `num_return_sequences`."""
    must_not_contain: Annotated[
        Sequence[Phrase],
        _PHRASES,
        CommandOption("content", "Never generate this text; repeatable."),
    ] = ()
    """Phrases that must not occur, with any strategy; texts are matched in any tokenization and
    within words, token ids as an exact sequence."""
    skip_special_tokens: Annotated[
        bool,
        SWITCH,
        CommandOption(
            "output",
            "Show special tokens in outputs.",
            "--keep-special-tokens",
            sets=False,
            hidden=True,
        ),
    ] = True
    """Whether texts of outputs omit special tokens."""
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
    """Maximum sequences per batch, counting beams; None: as many as fit into GPU memory, or
    `DEFAULT_BATCH_SIZE` on a processor."""
    max_batch_tokens: Annotated[int | None, integer(1)] = None
    """Maximum source tokens per batch, including padding; None: `DEFAULT_BATCH_TOKENS`, for speech
    `DEFAULT_WINDOWS` windows."""

    def __post_init__(self) -> None:
        problems = wrong_fields(self)
        if problems:
            raise DragomanError(problems=problems)
        object.__setattr__(self, "early_stopping", unwrapped(self.early_stopping))
        if self.end_token_id is not None:
            object.__setattr__(self, "end_token_id", tuple(_listed(self.end_token_id)))
        if self.prefix is not None:
            prefix = _comparable(self.prefix)
            object.__setattr__(self, "prefix", None if prefix == () else prefix)
        for name in ("must_contain", "must_not_contain"):
            object.__setattr__(self, name, tuple(map(_comparable, getattr(self, name))))
        problems = list(self._contradictions())
        if problems:
            raise DragomanError(problems=problems)

    def _contradictions(self) -> Iterator[str]:
        shortest, longest = self.min_new_tokens, self.max_new_tokens
        if longest is not None and shortest is not None and shortest > longest:
            most = f"max_new_tokens {shown(longest)}"
            yield f"min_new_tokens: expected at most {most}, found {shown(shortest)}"
        if self.do_sample and (self.num_beams or 1) > 1:
            found = f"{shown(self.num_beams)} with do_sample"
            yield f"num_beams: expected 1, or no do_sample, found {found}"
        both = [phrase for phrase in self.must_contain if phrase in self.must_not_contain]
        for phrase in both:
            yield f"must_contain: {shown(phrase)} is in must_not_contain, too"

    def given(self, names: Iterable[str]) -> list[str]:
        """Return those of some options that differ from their defaults."""
        return [name for name in names if getattr(self, name) != getattr(type(self), name)]

    def rules(self, settings: GenerationSettings) -> GenerationSettings:
        """Return a model's settings with the rules of the call, except `end_token_id`."""
        given = {name: getattr(self, name) for name in setting_names(Part.RULES, of=type(self))}
        given = {name: value for name, value in given.items() if value is not None}
        if "min_new_tokens" in given:
            given["min_length"] = 0
        return dataclasses.replace(settings, **given)

    def with_defaults(self, settings: GenerationSettings, names: Iterable[str]) -> dict[str, Any]:
        """Return options by name; the model's settings, which alone are included, replace None."""
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


class GenerationKeywords(TranscriptionKeywords, total=False):
    """The fields of `GenerationOptions` as keyword arguments, for type checkers and editors."""

    max_new_tokens: int | None
    max_new_tokens_per_source_token: float
    min_new_tokens: int | None
    end_token_id: int | str | Sequence[int | str] | None
    repetition_penalty: float | None
    no_repeat_ngram_size: int | None
    renormalize_logits: bool | None
    shortlist: bool
    truncate: bool
    split: bool
    split_language: str | None
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
    skip_special_tokens: bool
    max_batch_size: int | None
    max_batch_tokens: int | None
    timestamps: bool | None


def _is_finite(value: float) -> bool:
    return 0 <= value < math.inf


def _listed(value: Any) -> Sequence[Any]:
    plain = unwrapped(value)
    return plain if isinstance(plain, list | tuple) else [plain]


def _is_token(value: object) -> bool:
    return is_integer(value) or (isinstance(value, str) and bool(value))


def _is_phrase(value: object) -> bool:
    return isinstance(value, str) or is_token_ids(value)


def _comparable(phrase: Phrase) -> Phrase:
    return phrase if isinstance(phrase, str) else tuple(int(token) for token in phrase)
