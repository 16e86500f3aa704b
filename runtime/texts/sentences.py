"""Splits texts into sentences, and joins their outputs with the white space that was between them.

Line breaks end sentences. Parts without a letter are kept.
"""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from itertools import accumulate, chain, pairwise
from typing import Any, cast

from dragoman.errors import DragomanError, shown
from dragoman.settings.generation import GenerationOptions

from ..arguments import StopCheck, never_stopped
from ..decoding.results import Hypothesis, RejectedError, Result
from ..decoding.running_batch import DecodedJob, Job
from ..decoding.scheduler import FailedJob
from ..format.manifest import Manifest
from ..format.texts import languages_of_name
from .outputs import PendingText, as_result, nothing
from .plan import TextPlan

Span = tuple[int, int]
"""Begin and end of a part of a text, in characters."""

PACKAGES = ("sentencex", "langcodes")
"""The packages that split texts."""
DEFAULT_LANGUAGE = "en"
LONGEST_PIECE = 10_000
"""The most characters that are searched for sentences at once."""
LONGEST_CODE = 64
"""The most characters of the code of a language."""

_SPACES = "".join(c for c in map(chr, range(0x3001)) if c.isspace())
_DIRECTIONS = "\u061c\u200e\u200f"
"""Marks of the direction of a text (Unicode, annex 9)."""
_EMBEDDINGS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Those that come in pairs."""
_MARKER = re.compile(rf"[\s{_DIRECTIONS}]*(?:(?:[-*+>#•‣◦·\u2013\u2014]+|\(?\d{{1,3}}\))\s+)*")
_DASHES = "\u2013\u2014"
_PAUSES = frozenset(
    ",;:.!?)]}\u2026\u00bb\u201d\u3001\uff0c\uff1b\uff1a\u3002\uff01\uff1f\uff09\u300d\u300f"
    "\u060c\u061b\u061f\u0964" + _DASHES
)
_JOINER = "\u200d"
_UNSPACED = (
    *((0x0E00, 0x0EFF), (0x0F00, 0x109F), (0x1780, 0x17FF), (0x2E80, 0x9FFF)),
    *((0xF900, 0xFAFF), (0xFE30, 0xFE4F), (0xFF00, 0xFF9F), (0x20000, 0x3FFFF)),
)


def splitter_is_installed() -> bool:
    """Return whether the packages of the extra `sentences` are installed."""
    return all(find_spec(package) is not None for package in PACKAGES)


def check_split(options: GenerationOptions, manifest: Manifest) -> None:
    """Check that texts can be split with the options of a call, and the packages are installed."""
    if not options.split:
        if options.split_language is not None:
            raise DragomanError("split_language: expected with split, found no split")
        return
    model = manifest.model
    if not (model.has_encoder and model.has_decoder):
        raise DragomanError(
            f"split: expected a model that turns texts into texts, found {manifest.name}, a model "
            "that continues texts"
        )
    if manifest.tokenizers is None:
        raise DragomanError("split: expected a bundle with tokenizers, found one of token ids only")
    whole = options.given(("prefix", "must_contain"))
    if options.truncate:
        raise DragomanError(
            "truncate: expected none with split, which cuts long sentences into parts; leave "
            "truncate out"
        )
    if whole:
        raise DragomanError(
            f"{', '.join(whole)}: expected none with split: which sentence has it is not known"
        )
    missing = [package for package in PACKAGES if find_spec(package) is None]
    if missing:
        raise DragomanError(
            f"split: expected the package {missing[0]}, found none: pip install "
            "'dragoman[sentences]'"
        )
    code = options.split_language
    if code is not None and base_language(code) is None:
        raise DragomanError(f"split_language: expected a code such as de, found {shown(code)}")


def check_unsplit(options: GenerationOptions) -> None:
    """Check that an output can be streamed."""
    if options.split:
        raise DragomanError(
            "split: expected no stream, since the sentences of a text are decoded at once"
        )


def base_language(code: str) -> str | None:
    """Return the shortest code of a language, without script and region; None if it is no code.

    "de", "deu", "de_DE" and "deu_Latn" are "de".
    """
    return _base_language(code) if len(code) <= LONGEST_CODE else None


@lru_cache(1024)
def _base_language(code: str) -> str | None:
    import langcodes

    try:
        return langcodes.standardize_tag(code, macro=True).partition("-")[0]
    except ValueError:
        return None


def language_of(options: GenerationOptions, manifest: Manifest) -> str:
    """Return the language of the sources of a call, or else English."""
    languages = manifest.languages
    default = languages.default_source if languages else None
    named = languages_of_name(manifest.name)
    code = options.split_language or options.source_language or default or (named or (None,))[0]
    return (code and base_language(code)) or DEFAULT_LANGUAGE


def sentence_spans(
    text: str, language: str, *, lines: bool = True, check: StopCheck = never_stopped
) -> list[Span]:
    """Return the sentences of a text, without white space and marks of direction around them.

    Args:
        lines: whether line breaks end sentences, and lines may begin with list markers

    Returns:
        spans in order that have a letter; all parts if the text has none
    """
    found: list[Span] = []
    begin = 0
    for line in text.splitlines(keepends=True) if lines else [text]:
        marker = _MARKER.match(line) if lines else None
        rest = line[marker.end() if marker else 0 :]
        at = begin + len(line) - len(rest)
        for part in _segments(rest, language, check):
            if part.strip():
                found.append(_bare(text, at, at + len(part)))
            at += len(part)
        begin += len(line)
    if not found and text.strip():
        found = [stripped(text, 0, len(text))]  # a list marker by itself
    return [span for span in found if any(map(str.isalpha, text[slice(*span)]))] or found


def _segments(text: str, language: str, check: StopCheck) -> list[str]:
    """Return the sentences of a line, each with the white space after it.

    sentencex takes quadratic time for quotes that are not closed, so it gets the line in pieces.
    """
    edges, begin, is_open = list[int](), 0, False
    while begin < len(text):
        check()
        end = _end_of_piece(text, begin)
        found = _segments_of_piece(text[begin:end], language)
        starts = list(accumulate(map(len, found), initial=begin))[:-1]
        edges += starts[1:] if is_open else starts
        # The last sentence may go on; a piece of one sentence goes on in the next one.
        is_open = len(found) == 1
        if end < len(text) and not is_open:
            end = edges.pop()
        begin = end
    return [text[a:b] for a, b in pairwise([*edges, len(text)])]


def _end_of_piece(text: str, begin: int) -> int:
    """Return where a piece ends: after a line break, or else white space, if possible."""
    end = begin + LONGEST_PIECE
    if end >= len(text):
        return len(text)
    for mark in "\n ":
        place = text.rfind(mark, begin + LONGEST_PIECE // 2, end)
        if place >= 0:
            return place + 1
    return end


def _segments_of_piece(text: str, language: str) -> list[str]:
    import sentencex

    try:
        parts = [part for part in cast(list[str], sentencex.segment(language, text)) if part]
    except UnicodeEncodeError:  # a lone surrogate, for which the tokenizer rejects the text
        return [text]
    return parts if "".join(parts) == text else [text]


def _bare(text: str, begin: int, end: int) -> Span:
    """Return the span of a sentence, without one mark of a pair that it has the other one of."""
    part = text[begin:end]
    bare = part.strip(_SPACES + _DIRECTIONS + _EMBEDDINGS)
    if any(mark in bare for mark in _EMBEDDINGS):
        bare = part.strip(_SPACES + _DIRECTIONS)
    begin += part.find(bare or part.strip())
    return begin, begin + len(bare or part.strip())


def stripped(text: str, begin: int, end: int) -> Span:
    """Return the span of a part of a text without the white space around it."""
    part = text[begin:end]
    begin += len(part) - len(part.lstrip())
    return begin, begin + len(part.strip())


def fitting_spans(text: str, fits: Callable[[str], bool]) -> list[Span]:
    """Cut a text into parts that fit: at punctuation, or else at white space, or else anywhere.

    They are stripped; there are none if no character fits.

    Args:
        fits: returns whether a part fits, as all shorter ones do
    """
    found: list[Span] = []
    size = len(text)
    begin = size - len(text.lstrip())
    while begin < len(text):
        end = _longest(text, begin, size, fits)
        if end == begin:
            return []
        size = end - begin
        if end < len(text):
            cut = _last_cut(text, begin, end)
            end = cut if fits(text[begin:cut].rstrip()) else end
        found.append(stripped(text, begin, end))
        begin = end + len(text[end:]) - len(text[end:].lstrip())
    return found


def _longest(text: str, begin: int, size: int, fits: Callable[[str], bool]) -> int:
    low, high = 0, len(text) - begin
    size = min(size, high)
    while low < high:
        if fits(text[begin : begin + size]):
            low = size
            size = min(2 * size, high) if high == len(text) - begin else (low + high + 1) // 2
        else:
            high = size - 1
            size = (low + high + 1) // 2
    return begin + low


def _last_cut(text: str, begin: int, end: int) -> int:
    for place in range(end, begin + (end - begin) // 2, -1):
        last = text[place - 1]
        if last in _PAUSES and (text[place].isspace() or is_unspaced(last) or last in _DASHES):
            return place
    for place in range(end, begin, -1):
        if text[place].isspace():
            return place
    place = end
    while place > begin + 1 and _continues(text, place):
        place -= 1
    return place


def _continues(text: str, place: int) -> bool:
    """Return whether a character belongs to the one before it, such as an accent."""
    is_mark = unicodedata.category(text[place]).startswith("M")
    return is_mark or _JOINER in text[place - 1 : place + 1]


def is_unspaced(character: str) -> bool:
    """Return whether a character belongs to a script without spaces, such as Chinese or Thai."""
    code = ord(character)
    return code >= _UNSPACED[0][0] and any(first <= code <= last for first, last in _UNSPACED)


def joined(text: str, spans: Sequence[Span], outputs: Sequence[str]) -> str:
    """Return a text with outputs in place of its sentences; see `gaps`."""
    between = gaps(text, spans, outputs)
    return "".join(chain.from_iterable(zip(between, [*outputs, ""], strict=True)))


def gaps(text: str, spans: Sequence[Span], outputs: Sequence[str]) -> list[str]:
    """Return what is before, between and after the sentences of a text.

    Where sentences of a script without spaces follow each other, outputs in a script with spaces
    are separated by one.
    """
    edges = [0, *chain.from_iterable(spans), len(text)]
    found = [text[begin:end] for begin, end in zip(edges[::2], edges[1::2], strict=True)]
    for number in range(1, len(spans)):
        beside = outputs[number - 1][-1:] + outputs[number][:1]
        has_spaces = not any(is_unspaced(c) or c.isspace() for c in beside)
        was_unspaced = not found[number] and is_unspaced(text[spans[number][0] - 1])
        if len(beside) == 2 and has_spaces and was_unspaced:
            found[number] = " "
    return found


class PendingSentences:
    """A text whose sentences are decoded at once.

    Args:
        parts: what is begun for each; at least one is decoded
    """

    prefix: Sequence[int] = ()

    def __init__(
        self,
        text: str,
        spans: Sequence[Span],
        parts: Sequence[PendingText | Result],
        plan: TextPlan,
        warnings: tuple[str, ...],
    ) -> None:
        self._text, self._spans, self._warnings = text, spans, warnings
        self._results = [part if isinstance(part, Result) else None for part in parts]
        self._parts, self.plan = parts, plan
        counts = [0 if isinstance(part, Result) else len(part.jobs) for part in parts]
        self._first = [0, *accumulate(counts)]
        self._of_job = [n for n, count in enumerate(counts) for _ in range(count)]
        self.jobs = [
            Job(self._first[n] + job.key, job.request, job.strategy)
            for n, part in enumerate(parts)
            if not isinstance(part, Result)
            for job in part.jobs
        ]

    @property
    def longest(self) -> int:
        """The number of tokens of the longest source."""
        return max(part.longest for part in self._parts if not isinstance(part, Result))

    def add(
        self, number: int, outcome: DecodedJob[Any] | FailedJob[Any]
    ) -> Result | Sequence[Job[int]]:
        """Add the outcome of a job; return the result after the last one."""
        place = self._of_job[number]
        part = self._parts[place]
        found = () if isinstance(part, Result) else part.add(number - self._first[place], outcome)
        if not isinstance(found, Result):
            return ()
        self._results[place] = found
        results = [result for result in self._results if result is not None]
        if len(results) < len(self._results):
            return ()
        return joined_result(self._text, self._spans, results, self._warnings)


def joined_result(
    text: str, spans: Sequence[Span], results: Sequence[Result], warnings: tuple[str, ...] = ()
) -> Result:
    """Join the results of the sentences of a text; see `GenerationOptions.split`."""
    failed = [n for n, result in enumerate(results) if result.error is not None]
    if failed:
        reason = of_sentence(results[failed[0]].error or "", failed[0], len(results))
        return nothing("", "rejected", reason)
    decoded = [result for result in results if result.hypotheses]
    count = min(len(result.hypotheses) for result in decoded)
    hypotheses = []
    for rank in range(count):
        each = [result.hypotheses[rank] for result in decoded]
        texts = iter([hypothesis.text or "" for hypothesis in each])
        outputs = [next(texts) if result.hypotheses else "" for result in results]
        hypotheses.append(_in_a_row(joined(text, spans, outputs), each))
    return as_result(
        hypotheses,
        truncated=any(result.truncated for result in results),
        warnings=warnings,
        unknown_characters="".join(result.unknown_characters for result in results),
    )


def _in_a_row(text: str, each: Sequence[Hypothesis]) -> Hypothesis:
    if len(each) == 1:
        return dataclasses.replace(each[0], text=text)
    tokens: list[int] = []
    for number, hypothesis in enumerate(each):
        tokens += hypothesis.tokens
        if hypothesis.end_token is not None and number < len(each) - 1:
            tokens.append(hypothesis.end_token)
    return Hypothesis(
        text,
        tuple(tokens),
        sum(hypothesis.score for hypothesis in each),
        sum(hypothesis.log_probability for hypothesis in each),
        "end" if all(hypothesis.finish_reason == "end" for hypothesis in each) else "length",
        each[-1].end_token,
        tuple(p for hypothesis in each for p in hypothesis.token_log_probabilities),
        tuple(best for hypothesis in each for best in hypothesis.alternatives),
    )


def of_sentence(reason: str, number: int, count: int) -> str:
    """Return why a text with a rejected sentence is rejected."""
    return f"sentence {number + 1} of {count}: {reason}" if count > 1 else reason


def begun_sentences(
    text: str,
    plan: TextPlan,
    spans: Sequence[Span],
    begin: Callable[[str], PendingText | Result],
    fits: Callable[[str], bool],
) -> PendingSentences | Result:
    """Tokenize the sentences of a text, cutting those that are too long."""
    parts: list[Span] = []
    begun: list[PendingText | Result] = []
    cut: list[Span] = []
    for number, (first, last) in enumerate(spans):
        sentence = text[first:last]
        within, each = [(0, len(sentence))], [begin(sentence)]
        if isinstance(each[0], Result) and each[0].error is not None and not fits(sentence):
            within = fitting_spans(sentence, fits) or within
            cut.append((first, last))
            each = [begin(sentence[slice(*part)]) for part in within]
        for one in each:
            if isinstance(one, Result) and one.error is not None:
                raise RejectedError(of_sentence(one.error, number, len(spans)))
        parts += [(first + a, first + b) for a, b in within]
        begun += each
    if not any(isinstance(one, PendingText) for one in begun):
        return nothing(text, "empty")
    return PendingSentences(text, parts, begun, plan, warnings_of(cut))


def warnings_of(cut: Sequence[Span]) -> tuple[str, ...]:
    """Return the line that says which sentences were cut, if any."""
    if not cut:
        return ()
    what = "1 sentence is" if len(cut) == 1 else f"{len(cut)} sentences are"
    where = f"at character {cut[0][0]}" if len(cut) == 1 else f"the first at character {cut[0][0]}"
    return (f"{what} too long for the model and translated in parts: {where}",)
