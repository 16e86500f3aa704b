"""Beam search for outputs that contain required phrases.

It is lexically constrained decoding with dynamic beam allocation (Post & Vilar 2018, section 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .beam_search import Beam, BeamSearch, Candidate
from .logits_processors import Row
from .request import Request
from .results import RejectedError
from .search import SELECTED_TOKENS, NextTokens, RequiredOutputs, StepScores

Tokenizations = Sequence[Sequence[int]]
"""The non-empty token sequences of a phrase."""


class PhraseProgress(NamedTuple):
    """The progress of a sequence with the phrases."""

    node: int
    """Automaton node after the last token."""
    unmet: frozenset[int]
    """Indices of the missing phrases."""


class RequiredPhrases:
    """Phrases that an output must contain, each in one of its tokenizations.

    Phrases contained in other phrases are dropped. The automaton of Aho & Corasick (1975) finds all
    tokenizations, even where incomplete occurrences overlap.
    """

    def __init__(self, phrases: Iterable[Tokenizations]) -> None:
        self._phrases = _without_implied(
            [[tuple(tokens) for tokens in phrase] for phrase in phrases]
        )
        self._shortest = [min(map(len, phrase)) for phrase in self._phrases]
        self._next: list[dict[int, int]] = [{}]
        """Next node by token, for each node; any other token leads to the root."""
        self._missing: list[dict[int, int]] = [{}]
        """Number of missing tokens of each phrase begun at a node; 0: the phrase ends there."""
        self._build()
        self._ending = [
            frozenset(phrase for phrase, count in missing.items() if not count)
            for missing in self._missing
        ]
        self.start = PhraseProgress(0, frozenset(range(len(self._phrases))))
        self._to_come: dict[PhraseProgress, int] = {}
        self._towards: dict[PhraseProgress, list[int]] = {}

    @property
    def tokens(self) -> int:
        """The number of tokens of all phrases together."""
        return sum(self._shortest)

    def after(self, progress: PhraseProgress, *tokens: int) -> PhraseProgress:
        """Return the progress of a sequence with more tokens."""
        node, unmet = progress
        for token in tokens:
            node = self._next[node].get(token, 0)
            unmet -= self._ending[node]
        return PhraseProgress(node, unmet)

    def to_come(self, progress: PhraseProgress) -> int:
        """Return a number of tokens that suffices for all missing phrases.

        These complete a begun phrase, and then add the others one after the other. There is
        always a next token that reduces the number.
        """
        if progress not in self._to_come:
            missing = self._missing[progress.node]
            begun = [self._shortest[p] - missing[p] for p in progress.unmet & missing.keys()]
            whole = sum(self._shortest[phrase] for phrase in progress.unmet)
            self._to_come[progress] = whole - max([0, *begun])
        return self._to_come[progress]

    def towards(self, progress: PhraseProgress) -> list[int]:
        """Return the tokens that reduce `to_come`: the next of begun phrases, or the first ones."""
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
            for tokens in phrase:
                node = 0
                for count, token in enumerate(tokens, start=1):
                    if token not in children[node]:
                        children[node][token] = len(children)
                        children.append({})
                        self._missing.append({})
                    node = children[node][token]
                    known = self._missing[node].get(index, len(tokens))
                    self._missing[node][index] = min(known, len(tokens) - count)
        self._next = [dict(known) for known in children]
        # Breadth first: the node of the longest proper suffix comes first.
        suffix = [0] * len(children)
        queue = [*children[0].values()]
        for node in queue:
            self._missing[node] = _fewest(self._missing[node], self._missing[suffix[node]])
            self._next[node] = {**self._next[suffix[node]], **children[node]}
            for token, child in children[node].items():
                suffix[child] = self._next[suffix[node]].get(token, 0)
                queue.append(child)


def contains(tokens: Sequence[int], phrase: Sequence[int]) -> bool:
    """Return whether a phrase occurs in tokens, contiguously."""
    starts = range(len(tokens) - len(phrase) + 1)
    return any(tuple(tokens[i : i + len(phrase)]) == tuple(phrase) for i in starts)


def _without_implied(phrases: list[list[tuple[int, ...]]]) -> list[list[tuple[int, ...]]]:
    def implied(index: int) -> bool:
        return any(
            _implies(other, phrases[index])
            and (place < index or not _implies(phrases[index], other))
            for place, other in enumerate(phrases)
            if place != index
        )

    return [phrase for index, phrase in enumerate(phrases) if not implied(index)]


def _implies(phrase: list[tuple[int, ...]], part: list[tuple[int, ...]]) -> bool:
    return all(any(contains(tokens, small) for small in part) for tokens in phrase)


def _fewest(first: dict[int, int], second: dict[int, int]) -> dict[int, int]:
    return {
        phrase: min(counts[phrase] for counts in (first, second) if phrase in counts)
        for phrase in first.keys() | second.keys()
    }


MOST_BANKS = 64
"""Maximum number of banks with their own rows; with more tokens in phrases, banks share rows."""

MOST_ORDERS = 1000
"""Maximum number of partial orders of the phrases to try in the search for an order in which all
fit. With prohibitions, the search takes exponential time."""


@dataclass(frozen=True)
class ConstrainedBeam(Beam):
    """The strategy of beam search for outputs that contain required phrases.

    There are fewer outputs than `returned` if no others contain the phrases within the limit.

    A phrase overrides the rules of the model's settings, such as no_repeat_ngram_size: if they
    exclude its next token, it is scored without rules. `Rules.prohibitions` remain in force.
    """

    required: RequiredPhrases = field(default_factory=lambda: RequiredPhrases(()))

    @property
    def width(self) -> int:
        """The number of batch rows for a request.

        It is a multiple of the beams, so that requests share batches. Each bank has a row;
        otherwise the upper banks would take all rows, and phrases would occur at the beginning.
        """
        banks = min(self.required.tokens + 1, MOST_BANKS)
        return -(-banks // self.beams) * self.beams

    def begin(self, request: Request) -> ConstrainedBeamSearch:
        """Begin the search for the output of a request."""
        return ConstrainedBeamSearch(self, request)

    def check(self, request: Request) -> None:
        """Reject a request in whose limit the phrases do not fit, one after the other."""
        rules = request.rules
        begun = [token for token in request.prefix if isinstance(token, int)]
        if rules.forced_first is not None:
            begun.insert(0, rules.forced_first)
        progress = self.required.after(self.required.start, *begun)
        room = rules.limit - (rules.forced_last is not None) - (rules.forced_first is not None)
        if self.required.to_come(progress) > max(room, 0):
            raise RejectedError(
                f"must_contain: expected at most {max(room, 0)} tokens, what the limit leaves, "
                f"found {self.required.to_come(progress)}"
            )


class ConstrainedBeamSearch(BeamSearch):
    """Beam search with rows allocated to banks: hypotheses with the same number of phrase tokens.

    A token is a candidate only if the missing phrases still fit in the limit after it.
    """

    def __init__(self, strategy: ConstrainedBeam, request: Request) -> None:
        super().__init__(strategy, request)
        self._required, self._prompt = strategy.required, len(request.prompt)
        self._progress: list[PhraseProgress] = []
        """Progress of each running hypothesis; empty before the first step."""
        self._overdue: set[int] = set()
        """Running hypotheses that would have ended, but lack phrases."""
        self._last = request.rules.limit - (request.rules.forced_last is not None)
        """Number of the last new token that is not forced."""

    def required_outputs(self) -> RequiredOutputs:
        """Return the outputs of the next step that `advance` requires."""
        required = super().required_outputs()
        met = self._progress and not any(progress.unmet for progress in self._progress)
        if met or required == SELECTED_TOKENS:
            return required
        return required._replace(logits=True)

    def advance(self, step: StepScores, row: int) -> NextTokens:
        """Continue with the best candidates, and collect finished hypotheses."""
        if not self._progress:
            begun = self.sequence.row.tokens[self._prompt :]
            self._progress = [self._required.after(self._required.start, *begun)]
        return super().advance(step, row)

    def _best(self, step: StepScores, row: int, count: int) -> list[Candidate]:
        """Return the best candidates overall and of each hypothesis, and those of `_closer`."""
        scores = self._under_rules(step, row, count)
        candidates = self._candidates_of_each(step, row, count, scores)
        candidates = [candidate for candidate in candidates if candidate.score > -np.inf]
        self._overdue |= {
            beam for beam, c in _first_of_each(candidates).items() if self._is_early(c)
        }
        candidates = [candidate for candidate in candidates if self._fits(candidate, count)]
        candidates.sort(key=lambda candidate: -candidate.score)
        first = _first_of_each(candidates).values()
        best = {(c.beam, c.token): c for c in (*candidates[: self._candidates], *first)}
        if self._rules.forced_at(count) is None:
            for beam in range(len(self._progress)):
                for candidate in self._closer(step, row, beam, scores):
                    if self._fits(candidate, count):
                        best.setdefault((beam, candidate.token), candidate)
        return sorted(best.values(), key=lambda candidate: -candidate.score)

    def _closer(
        self, step: StepScores, row: int, beam: int, scores: NDArray[np.float32] | None
    ) -> list[Candidate]:
        rules, place = self._rules, self._rows[beam]
        candidates = []
        for token in self._required.towards(self._progress[beam]):
            if rules.forbid(self._running[beam].row, token):
                continue
            logit = step.logit(row + place, token)
            score = own = logit - step.normalizer(row + place)
            if token not in rules.suppressed:
                own = logit - step.allowed_normalizer(row + place)
            if scores is not None and scores[place, token] > -np.inf:
                score = float(scores[place, token])
            elif rules.renormalize:
                score = own
            candidates.append(Candidate(self._scores[beam] + score, beam, token, own))
        return candidates

    def _chosen(self, candidates: list[Candidate]) -> list[Candidate]:
        banks: list[list[Candidate]] = [[] for _ in range(self._required.tokens + 1)]
        for candidate in candidates:
            banks[self._required.tokens - self._to_come(candidate)].append(candidate)
        sizes = allocate(self._strategy.width, [len(bank) for bank in banks])
        chosen = [c for bank, size in zip(banks, sizes, strict=True) for c in bank[:size]]
        return sorted(chosen, key=lambda candidate: -candidate.score)

    def _continue(self, candidates: list[Candidate], step: StepScores, row: int) -> NextTokens:
        self._progress = [
            self._required.after(self._progress[candidate.beam], candidate.token)
            for candidate in candidates
        ]
        self._overdue = {
            beam
            for beam, candidate in enumerate(candidates)
            if candidate.beam in self._overdue and self._progress[beam].unmet
        }
        return super()._continue(candidates, step, row)

    def _best_score(self) -> float:
        """Return the score of the best running hypothesis that is not overdue.

        An overdue hypothesis would have ended, but lacks phrases. It must not prolong the search
        by a length penalty that improves its score with every token.
        """
        others = [s for beam, s in enumerate(self._scores) if beam not in self._overdue]
        return max(others, default=-np.inf)

    def _is_early(self, candidate: Candidate) -> bool:
        ends = candidate.token in self._rules.end_tokens
        return ends and bool(self._progress[candidate.beam].unmet)

    def _fits(self, candidate: Candidate, count: int) -> bool:
        progress, left = self._progress[candidate.beam], max(0, self._last - count)
        if not progress.unmet:
            return True
        if self._is_early(candidate):
            return False
        to_come = self._to_come(candidate)
        if to_come < left or not self._rules.prohibitions:
            return to_come <= left
        sequence = self._running[candidate.beam]
        row = Row(sequence.row.source, [*sequence.row.tokens, candidate.token])
        return to_come == left and self._completes(
            row, self._required.after(progress, candidate.token)
        )

    def _completes(self, row: Row, progress: PhraseProgress) -> bool:
        """Return whether the missing phrases can follow in some order without a prohibition.

        It is also True if the search takes too long, see `MOST_ORDERS`.
        """
        open_ends = [(row, progress)]
        for _ in range(MOST_ORDERS):
            if not open_ends:
                return False
            row, progress = open_ends.pop()
            if not progress.unmet:
                return True
            open_ends += [
                (Row(row.source, [*row.tokens, token]), self._required.after(progress, token))
                for token in self._required.towards(progress)
                if not self._rules.forbid(row, token)
            ]
        return True

    def _to_come(self, candidate: Candidate) -> int:
        progress = self._required.after(self._progress[candidate.beam], candidate.token)
        return self._required.to_come(progress)


def _first_of_each(candidates: Iterable[Candidate]) -> dict[int, Candidate]:
    first: dict[int, Candidate] = {}
    for candidate in candidates:
        first.setdefault(candidate.beam, candidate)
    return first


def allocate(rows: int, candidates: Sequence[int]) -> list[int]:
    """Return the number of rows of each bank, given its number of candidates.

    Each bank gets the same number of rows. The last bank, which has all phrases, also gets the
    remainder. Unused rows of a bank then go to the nearest banks that need more; of two equally
    near banks, the later one is first. The sum is min(rows, sum(candidates)).
    """
    banks = len(candidates)
    sizes = [rows // banks] * banks
    sizes[-1] += rows % banks
    for bank in range(banks):
        if sizes[bank] <= candidates[bank]:
            continue
        others = sorted(range(banks), key=lambda other: (abs(other - bank), -other))
        for other in others[1:]:
            moved = min(sizes[bank] - candidates[bank], candidates[other] - sizes[other])
            if moved > 0:
                sizes[bank] -= moved
                sizes[other] += moved
        sizes[bank] = min(sizes[bank], candidates[bank])
    return sizes
