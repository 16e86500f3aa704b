"""Places the tags of a paragraph among the words of its translation.

An inline element goes to the words aligned with its own. If these are not in a row, it goes to the
stretch that has most of them and least others, and never overlaps another one. Part of a word
becomes the whole word.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..arguments import StopCheck, never_stopped
from .sentences import Span, is_unspaced


class WordPairs(Protocol):
    """A word alignment, see `attention.alignment.Alignment`."""

    @property
    def source(self) -> tuple[str, ...]:
        """The words of the source."""

    @property
    def target(self) -> tuple[str, ...]:
        """The words of the target."""

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Pairs of source and target word."""


MOST_CUTS = 500
"""The most tags of elements in several paragraphs whose place is searched for."""


@dataclass(eq=False)
class Inline:
    """An inline element, or anything else among the words."""

    opening: str
    closing: str
    """`opening` and `closing`: the tags; of something without text, all of it and nothing."""
    begin: int
    end: int
    """`begin` and `end`: its part of the paragraph's text."""
    children: list[Inline] = field(default_factory=list)
    is_spaced: bool = False
    """Whether white space follows that the text does not have, since there is some before."""
    is_cut: bool = False
    """Whether it is a tag by itself, such as of an element with several paragraphs."""

    @property
    def raw(self) -> str:
        """All tags in it."""
        return f"{self.opening}{''.join(child.raw for child in self.children)}{self.closing}"


class Words:
    """The aligned words of a paragraph and of its translation."""

    def __init__(
        self, text: str, encode: Callable[[str], str], check: StopCheck = never_stopped
    ) -> None:
        self._text, self._encode, self._check = text, encode, check
        self._target = ""
        self._source_spans: list[Span] = []
        self._spans: list[Span] = []
        self._sources: list[int] = []
        """The source word of each target word."""
        self._targets: dict[int, list[int]] = defaultdict(list)
        """The target words of source words."""

    def keep(self, span: Span, text: str) -> None:
        """Add what is between sentences, with its words as they are."""
        own, found = _units(self._text[slice(*span)]), _units(text)
        self._add(span[0], own, text, found, range(len(found)))

    def add(self, span: Span, output: str, alignment: WordPairs | None) -> None:
        """Add a sentence and its translation."""
        self._check()
        sentence = self._text[slice(*span)]
        sources, targets = _units(sentence), _units(output)
        count = len(sources)
        of_target = [(2 * n + 1) * count // (2 * len(targets)) for n in range(len(targets))]
        if (
            alignment is not None
            and [sentence[a:b] for a, b in sources] == list(alignment.source)
            and [output[a:b] for a, b in targets] == list(alignment.target)
        ):
            for source, target in alignment.pairs:
                of_target[target] = source
        self._add(span[0], sources, output, targets, of_target)

    def _add(
        self,
        begin: int,
        sources: Sequence[Span],
        output: str,
        targets: Sequence[Span],
        of_target: Sequence[int],
    ) -> None:
        first, place = len(self._source_spans), len(self._target)
        for number, source in enumerate(of_target, len(self._sources)):
            self._sources.append(first + source)
            self._targets[first + source].append(number)
        self._source_spans += [(begin + a, begin + b) for a, b in sources]
        self._spans += [(place + a, place + b) for a, b in targets]
        self._target += output

    def rendered(self, inline: Sequence[Inline]) -> str:
        """Return the translation with the tags of inline elements."""
        edges = (0, len(self._text.rstrip()))
        return self._within(inline, edges, (0, len(self._spans)), (0, len(self._target)))

    def _within(self, inline: Sequence[Inline], edges: Span, units: Span, characters: Span) -> str:
        """Return the translation of `edges` with its elements, `inline`, in their order."""
        text, waiting, cuts = "", list[Inline](), 0
        for one in inline:
            self._check()
            if not one.is_cut:
                waiting.append(one)
                continue
            cuts += 1
            place = self._cut(one.begin, units) if cuts < MOST_CUTS else units[0]
            end, _ = self._characters(one, (place, place), units, characters)
            before = (edges[0], one.begin), (units[0], place), (characters[0], end)
            text += f"{self._between(waiting, *before)}{one.opening}"
            waiting, edges = [], (one.begin, edges[1])
            units, characters = (place, units[1]), (end, characters[1])
        return text + self._between(waiting, edges, units, characters)

    def _cut(self, begin: int, units: Span) -> int:
        """Return the target word that best matches a place of the source."""
        score = best = 0
        found = units[0]
        for number in range(*units):
            is_before = self._source_spans[self._sources[number]][0] < begin
            score += 1 if is_before else -1
            if score > best:
                best, found = score, number + 1
        return found

    def _between(self, inline: Sequence[Inline], edges: Span, units: Span, characters: Span) -> str:
        taken = self._taken(inline, units)
        known = sorted((self._sources[t], t) for t in range(*units)) if inline else []
        low, high = zip(*sorted(taken.values()), strict=True) if taken else ((), ())
        places: list[tuple[Span, int]] = []
        for n, one in enumerate(inline):
            self._check()
            if n in taken:
                places.append((taken[n], n))
                continue
            if one.begin <= edges[0] or one.begin >= edges[1]:
                place = units[0] if one.begin <= edges[0] else units[1]
            else:
                place = self._place(one.begin, known, units)
            outer = bisect_left(low, place) - 1
            if outer >= 0 and place < high[outer]:
                near = place - low[outer] <= high[outer] - place
                place = low[outer] if near else high[outer]
            places.append(((place, place), n))
        text, done = "", characters[0]
        for own, n in sorted(places):
            self._check()
            one = inline[n]
            begin, end = self._characters(one, own, units, characters)
            begin, end = max(begin, done), max(end, done)
            text += self._encode(self._target[done:begin])
            if begin == end and one.begin == one.end:
                is_after_space = one.begin > 0 and self._text[one.begin - 1].isspace()
                text += " " if is_after_space and text and not text[-1].isspace() else ""
                follows = begin < len(self._target) and not self._target[begin].isspace()
                text += f"{one.raw}{' ' if one.is_spaced and follows else ''}"
            elif own[0] == own[1]:
                text += one.raw
            else:
                inner = self._within(one.children, (one.begin, one.end), own, (begin, end))
                text += f"{one.opening}{inner}{one.closing}"
            done = end
        return text + self._encode(self._target[done : characters[1]])

    def _taken(self, inline: Sequence[Inline], units: Span) -> dict[int, Span]:
        """Return the words of each element that has any, without overlaps."""
        members = {}
        for n, one in enumerate(inline):
            self._check()
            each = (t for w in range(*self._words_of(one)) for t in self._targets.get(w, ()))
            members[n] = sorted(t for t in each if units[0] <= t < units[1])
        found: dict[int, Span] = {}
        begins: list[int] = []
        ends: dict[int, int] = {}
        for n in sorted(members, key=lambda n: (-len(members[n]), n)):
            self._check()
            span = _densest(members[n], begins, ends)
            if span is not None:
                found[n] = span
                begins.insert(bisect_left(begins, span[0]), span[0])
                ends[span[0]] = span[1]
        return found

    def _words_of(self, one: Inline) -> Span:
        if one.begin == one.end:
            return (0, 0)
        first = bisect_right(self._source_spans, one.begin, key=lambda span: span[1])
        last = bisect_left(self._source_spans, one.end, key=lambda span: span[0])
        return first, max(first, last)

    def _place(self, begin: int, known: Sequence[Span], units: Span) -> int:
        following = bisect_right(self._source_spans, begin, key=lambda span: span[1])
        if following < len(self._source_spans) and self._source_spans[following][0] < begin:
            following += 1  # within a word, which it stands after
        next_one = bisect_left(known, (following, 0))
        after = known[next_one] if next_one < len(known) else None
        before = known[next_one - 1] if next_one else None
        if after is not None and (
            before is None or after[0] - following <= following - 1 - before[0]
        ):
            return after[1]
        return units[0] if before is None else before[1] + 1

    def _characters(self, one: Inline, own: Span, units: Span, characters: Span) -> Span:
        if own[0] < own[1]:
            begin, end = self._of_words(one, own)
        else:
            is_after_space = one.begin == 0 or self._text[one.begin - 1].isspace()
            if own[0] < units[1] and (is_after_space or own[0] == units[0]):
                begin = self._spans[own[0]][0]
            elif own[0] > units[0] and not is_after_space:
                begin = self._spans[own[0] - 1][1]
            else:
                begin = characters[1]
            end = begin
        begin = min(max(begin, characters[0]), characters[1])
        return begin, max(begin, min(end, characters[1]))

    def _of_words(self, one: Inline, own: Span) -> Span:
        (begin, _), (_, end) = self._spans[own[0]], self._spans[own[1] - 1]
        first, last = self._words_of(one)
        source, part = self._source_spans[first], self._text[one.begin : one.end]
        if last == first + 1 and own[1] == own[0] + 1 and len(part) < source[1] - source[0]:
            # A part of a word that the translation has as well, such as a footnote's number.
            whole = self._target[begin:end]
            if one.end == source[1] and whole.endswith(part):
                return end - len(part), end
            if one.begin == source[0] and whole.startswith(part):
                return begin, begin + len(part)
        if _is_punctuation(self._text[source[0] : one.begin]):
            begin = _without_marks(self._target, *self._spans[own[0]])[0]
        if _is_punctuation(self._text[one.end : self._source_spans[last - 1][1]]):
            end = _without_marks(self._target, *self._spans[own[1] - 1])[1]
        return begin, end


def _densest(members: Sequence[int], begins: Sequence[int], ends: Mapping[int, int]) -> Span | None:
    """Return the stretch with the most words of an element, less the others in it.

    Args:
        members: the element's words, in order
        begins, ends: the stretches of other elements, in order, which are not entered
    """
    best, score = None, 0
    begin, total, last = 0, 0, -1
    for word in members:
        outer = bisect_right(begins, word) - 1
        if outer >= 0 and word < ends[begins[outer]]:
            total = 0
            continue
        is_apart = outer >= 0 and begins[outer] > last
        total = 0 if total <= 0 or is_apart else total - (word - last - 1)
        if total <= 0:
            begin, total = word, 0
        total, last = total + 1, word
        if total > score:
            best, score = (begin, word + 1), total
    return best


def _units(text: str) -> list[Span]:
    """Return the words of a text; in a script without spaces, the characters."""
    found, begin = list[Span](), -1
    for place, character in enumerate(text):
        alone = is_unspaced(character)
        if alone or character.isspace():
            if begin >= 0:
                found.append((begin, place))
            begin = -1
            if alone:
                found.append((place, place + 1))
        elif begin < 0:
            begin = place
    return [*found, (begin, len(text))] if begin >= 0 else found


def _is_punctuation(text: str) -> bool:
    return bool(text) and not any(map(str.isalnum, text))


def _without_marks(text: str, begin: int, end: int) -> Span:
    """Return the span of a word without punctuation around it, if anything is left."""
    first, last = begin, end
    while first < last and not text[first].isalnum():
        first += 1
    while last > first and not text[last - 1].isalnum():
        last -= 1
    return (first, last) if first < last else (begin, end)
