"""Which of several phrases a sequence of tokens contains, followed token by token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

Ways = Sequence[Sequence[int]]
"""The token sequences that a phrase may be, none of them empty."""


class Progress(NamedTuple):
    """What a sequence has of the phrases.

    Attributes:
        node: of the automaton: what the sequence ends with
        unmet: the phrases that it does not contain
    """

    node: int
    unmet: frozenset[int]


class RequiredPhrases:
    """Phrases that an output must contain, each in one of its ways.

    A phrase that is part of another, or the same, is met with it and not placed apart. The ways are
    looked for with the automaton of Aho & Corasick (1975): what has begun with a token that turns
    out to be part of another occurrence is not lost.
    """

    def __init__(self, phrases: Iterable[Ways]) -> None:
        self._phrases = _without_implied([[tuple(way) for way in phrase] for phrase in phrases])
        self._shortest = [min(map(len, phrase)) for phrase in self._phrases]
        self._next: list[dict[int, int]] = [{}]
        """The node that follows each node with a token; with any other, the root."""
        self._missing: list[dict[int, int]] = [{}]
        """How many tokens each phrase that is begun at a node still lacks; 0: it ends there."""
        self._build()
        self._ending = [
            frozenset(phrase for phrase, count in missing.items() if not count)
            for missing in self._missing
        ]
        self.start = Progress(0, frozenset(range(len(self._phrases))))
        self._to_come: dict[Progress, int] = {}
        self._towards: dict[Progress, list[int]] = {}

    @property
    def tokens(self) -> int:
        """The length of all phrases together."""
        return sum(self._shortest)

    def after(self, progress: Progress, *tokens: int) -> Progress:
        """The progress of a sequence with more tokens."""
        node, unmet = progress
        for token in tokens:
            node = self._next[node].get(token, 0)
            unmet -= self._ending[node]
        return Progress(node, unmet)

    def to_come(self, progress: Progress) -> int:
        """A number of tokens that suffices: first what completes a phrase that has begun, then the
        other phrases one after the other. One more token can always make it less.
        """
        if progress not in self._to_come:
            missing = self._missing[progress.node]
            begun = [self._shortest[p] - missing[p] for p in progress.unmet & missing.keys()]
            whole = sum(self._shortest[phrase] for phrase in progress.unmet)
            self._to_come[progress] = whole - max([0, *begun])
        return self._to_come[progress]

    def towards(self, progress: Progress) -> list[int]:
        """The tokens that make `to_come` less: the next one of a phrase that has begun, or else the
        first ones of phrases.
        """
        if progress not in self._towards:
            left = self.to_come(progress)
            self._towards[progress] = [
                token
                for token in self._next[progress.node]
                if self.to_come(self.after(progress, token)) < left
            ]
        return self._towards[progress]

    def _build(self) -> None:
        children: list[dict[int, int]] = [{}]
        for index, phrase in enumerate(self._phrases):
            for way in phrase:
                node = 0
                for count, token in enumerate(way, start=1):
                    if token not in children[node]:
                        children[node][token] = len(children)
                        children.append({})
                        self._missing.append({})
                    node = children[node][token]
                    known = self._missing[node].get(index, len(way))
                    self._missing[node][index] = min(known, len(way) - count)
        self._next = [dict(known) for known in children]
        # Breadth first: the longest proper suffix of a node that is one itself comes before it.
        suffix = [0] * len(children)
        queue = [*children[0].values()]
        for node in queue:
            self._missing[node] = _fewest(self._missing[node], self._missing[suffix[node]])
            self._next[node] = {**self._next[suffix[node]], **children[node]}
            for token, child in children[node].items():
                suffix[child] = self._next[suffix[node]].get(token, 0)
                queue.append(child)


def contains(tokens: Sequence[int], phrase: Sequence[int]) -> bool:
    """Whether a phrase occurs in tokens, in one piece."""
    starts = range(len(tokens) - len(phrase) + 1)
    return any(tuple(tokens[i : i + len(phrase)]) == tuple(phrase) for i in starts)


def _without_implied(phrases: list[list[tuple[int, ...]]]) -> list[list[tuple[int, ...]]]:
    """The phrases that are not part of others; of those that are the same, the first."""

    def implied(index: int) -> bool:
        return any(
            _implies(other, phrases[index])
            and (place < index or not _implies(phrases[index], other))
            for place, other in enumerate(phrases)
            if place != index
        )

    return [phrase for index, phrase in enumerate(phrases) if not implied(index)]


def _implies(phrase: list[tuple[int, ...]], part: list[tuple[int, ...]]) -> bool:
    return all(any(contains(way, small) for small in part) for way in phrase)


def _fewest(first: dict[int, int], second: dict[int, int]) -> dict[int, int]:
    return {
        phrase: min(counts[phrase] for counts in (first, second) if phrase in counts)
        for phrase in first.keys() | second.keys()
    }
