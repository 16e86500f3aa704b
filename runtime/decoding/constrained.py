"""Beam search for outputs that contain given phrases: lexically constrained decoding with dynamic
beam allocation (Post & Vilar 2018, section 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .beam import Beam, BeamSearch, Candidate
from .logits_processors import Row
from .rejection import RejectedError
from .request import Request
from .required_phrases import Progress, RequiredPhrases
from .search import NOTHING, Continuation, Need, Outlook

MOST_BANKS = 64
"""Beams grow with the tokens of phrases up to here; then banks share places."""

MOST_ORDERS = 1000
"""Beginnings of orders of the phrases that are tried to find one in which all fit: with
prohibitions it is a search for a path through all of them, which takes exponential time."""


@dataclass(frozen=True)
class ConstrainedBeam(Beam):
    """See `search.Strategy`. Every output contains the phrases; there may be fewer outputs than
    `returned`, if no others do within the limit.

    A phrase wins over the rules of the model's settings, such as that no n-gram occurs twice: where
    they exclude its next token, the token is scored as if there were none. It does not win over
    `Rules.prohibitions`.

    Attributes:
        required: the phrases
    """

    required: RequiredPhrases = field(default_factory=lambda: RequiredPhrases(()))

    @property
    def width(self) -> int:
        """So many times the beams that each bank has a place: else the upper ones take all places,
        and phrases stand at the beginning. A multiple, so that requests can share batches.
        """
        banks = min(self.required.tokens + 1, MOST_BANKS)
        return -(-banks // self.beams) * self.beams

    def begin(self, request: Request) -> ConstrainedBeamSearch:
        return ConstrainedBeamSearch(self, request)

    def check(self, request: Request) -> None:
        """
        Raises:
            RejectedError: the phrases do not fit in the limit, one after the other.
        """
        rules = request.rules
        begun = [token for token in request.given if isinstance(token, int)]
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
    """A beam whose places are shared out to banks: hypotheses that have as many tokens of the
    phrases. Of all tokens, only those are candidates after which the phrases still fit in the
    limit.
    """

    def __init__(self, strategy: ConstrainedBeam, request: Request) -> None:
        super().__init__(strategy, request)
        self._required, self._prompt = strategy.required, len(request.prompt)
        self._progress: list[Progress] = []
        """Of each running hypothesis; none before the first step."""
        self._overdue: set[int] = set()
        """The running hypotheses that lack phrases, and else would have ended."""
        self._last = request.rules.limit - (request.rules.forced_last is not None)
        """The last new token that is chosen."""

    def need(self) -> Need:
        need = super().need()
        met = self._progress and not any(progress.unmet for progress in self._progress)
        return need if met or need == NOTHING else need._replace(logits=True)

    def advance(self, outlook: Outlook, row: int) -> Continuation:
        if not self._progress:
            begun = self.draft.row.tokens[self._prompt :]
            self._progress = [self._required.after(self._required.start, *begun)]
        return super().advance(outlook, row)

    def _best(self, outlook: Outlook, row: int, count: int) -> list[Candidate]:
        """The best overall, the best of each hypothesis, and those that come closer to having all
        phrases.
        """
        scores = self._under_rules(outlook, row, count)
        found = self._candidates_of_each(outlook, row, count, scores)
        found = [candidate for candidate in found if candidate.score > -np.inf]
        self._overdue |= {beam for beam, c in _first_of_each(found).items() if self._is_early(c)}
        found = [candidate for candidate in found if self._fits(candidate, count)]
        found.sort(key=lambda candidate: -candidate.score)
        first = _first_of_each(found).values()
        best = {(c.beam, c.token): c for c in (*found[: self._candidates], *first)}
        if self._rules.forced_at(count) is None:
            for beam in range(len(self._progress)):
                for candidate in self._closer(outlook, row, beam, scores):
                    if self._fits(candidate, count):
                        best.setdefault((beam, candidate.token), candidate)
        return sorted(best.values(), key=lambda candidate: -candidate.score)

    def _closer(
        self, outlook: Outlook, row: int, beam: int, scores: NDArray[np.float32] | None
    ) -> list[Candidate]:
        """A hypothesis with each token that brings it closer to having all phrases.

        Args:
            scores: from `_under_rules`
        """
        rules, place = self._rules, self._rows[beam]
        found = []
        for token in self._required.towards(self._progress[beam]):
            if rules.forbid(self._running[beam].row, token):
                continue
            logit = outlook.logit(row + place, token)
            own = logit - outlook.normalizer(row + place)
            score = own if scores is None else float(scores[place, token])
            if score == -np.inf:
                score = own
            if token not in rules.suppressed:
                own = logit - outlook.allowed_normalizer(row + place)
            found.append(Candidate(self._scores[beam] + score, beam, token, own))
        return found

    def _chosen(self, candidates: list[Candidate]) -> list[Candidate]:
        banks: list[list[Candidate]] = [[] for _ in range(self._required.tokens + 1)]
        for candidate in candidates:
            banks[self._required.tokens - self._to_come(candidate)].append(candidate)
        sizes = allocate(self._strategy.width, [len(bank) for bank in banks])
        chosen = [c for bank, size in zip(banks, sizes, strict=True) for c in bank[:size]]
        return sorted(chosen, key=lambda candidate: -candidate.score)

    def _go_on(self, candidates: list[Candidate], outlook: Outlook, row: int) -> Continuation:
        self._progress = [
            self._required.after(self._progress[candidate.beam], candidate.token)
            for candidate in candidates
        ]
        self._overdue = {
            beam
            for beam, candidate in enumerate(candidates)
            if candidate.beam in self._overdue and self._progress[beam].unmet
        }
        return super()._go_on(candidates, outlook, row)

    def _best_score(self) -> float:
        """The search does not go on for what is overdue: it grows longer, and with a length penalty
        better, without being an output.
        """
        others = [s for beam, s in enumerate(self._scores) if beam not in self._overdue]
        return max(others, default=-np.inf)

    def _is_early(self, candidate: Candidate) -> bool:
        """Whether it ends without having all phrases."""
        ends = candidate.token in self._rules.end_tokens
        return ends and bool(self._progress[candidate.beam].unmet)

    def _fits(self, candidate: Candidate, count: int) -> bool:
        """Whether the phrases can still follow it within the limit, or are there if it ends."""
        progress, left = self._progress[candidate.beam], max(0, self._last - count)
        if not progress.unmet:
            return True
        if self._is_early(candidate):
            return False
        to_come = self._to_come(candidate)
        if to_come < left or not self._rules.prohibitions:
            return to_come <= left
        draft = self._running[candidate.beam]
        row = Row(draft.row.source, [*draft.row.tokens, candidate.token])
        return to_come == left and self._completes(
            row, self._required.after(progress, candidate.token)
        )

    def _completes(self, row: Row, progress: Progress) -> bool:
        """Whether the phrases, one right after the other, can follow without anything that must not
        occur; or, if that takes long to find out, perhaps.
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
    """The first candidate of each hypothesis."""
    first: dict[int, Candidate] = {}
    for candidate in candidates:
        first.setdefault(candidate.beam, candidate)
    return first


def allocate(places: int, candidates: Sequence[int]) -> list[int]:
    """Share out a beam to banks: to each the same number, what is left to the last, which has
    everything; then what a bank has too many goes to banks that lack some, the nearest first, of
    two equally near ones to the later.

    Args:
        places: of the beam
        candidates: of each bank

    Returns:
        the places of each, together the smaller of all places and all candidates
    """
    banks = len(candidates)
    sizes = [places // banks] * banks
    sizes[-1] += places % banks
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
