"""Beam search, as Hugging Face's `generate` does it (transformers 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..backends.prediction import best_tokens
from ..format.generation_settings import EarlyStopping
from .request import Request
from .search import (
    NOTHING,
    Alternatives,
    Continuation,
    Draft,
    Need,
    Outlook,
    finish,
    first_draft,
)


@dataclass(frozen=True)
class Beam:
    """See `search.Strategy`.

    Attributes:
        beams: hypotheses that are kept at each step
        length_penalty: the sum of log-probabilities is divided by length ** length_penalty to rank
            hypotheses that have ended; more than 0 favours long ones. The end token counts.
        early_stopping: True: end with as many ended hypotheses as there are beams. False: end when,
            at their present length, no running hypothesis ranks above the worst of them. "never":
            the same at the best length that it could reach.
        returned: how many hypotheses are returned, at most `beams`
    """

    beams: int
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    returned: int = 1

    @property
    def width(self) -> int:
        return self.beams

    def begin(self, request: Request) -> BeamSearch:
        return BeamSearch(self, request)


class Candidate(NamedTuple):
    """A hypothesis with one more token.

    Attributes:
        score: sum of log-probabilities after the rules
        beam: the index of the hypothesis among those running
        log_probability: the token's own
    """

    score: float
    beam: int
    token: int
    log_probability: float


class BeamSearch:
    """The hypotheses of one source: those running, best first, and those that have ended.

    A running hypothesis has one of the request's rows, see `placed`. At first there is one; and
    there are fewer than beams where the rules leave fewer tokens. (There Hugging Face has copies
    with scores of -1e9 and less.)
    """

    def __init__(self, strategy: Beam, request: Request) -> None:
        self._strategy, self._rules = strategy, request.rules
        self.draft = first_draft(request)
        self._running = [self.draft]
        self._scores, self._rows = [0.0], [0]
        self._ended: list[Draft] = []
        self._candidates = max(2, 1 + len(set(request.rules.end_tokens))) * strategy.width
        # A forced token may be the last.
        self.finished = self.draft.count > 0 and finish(self.draft, self._rules)
        if self.finished:
            self._end(self.draft, 0.0)

    def need(self) -> Need:
        rules, count = self._rules, self._running[0].count + 1
        if rules.forced_at(count) is not None:
            return NOTHING
        excluded = rules.excluded(count)
        if excluded is None:
            return Need(rules.alternatives, logits=True)
        return Need(max(self._candidates + len(excluded), rules.alternatives))

    def advance(self, outlook: Outlook, row: int) -> Continuation:
        count = self._running[0].count + 1
        best = self._best(outlook, row, count)
        # Only those chosen may end; the other candidates are there so that enough can go on.
        for candidate in self._chosen(best):
            if self._ends(candidate, count):
                child = self._child(candidate, outlook, row)
                finish(child, self._rules)
                self._end(child, candidate.score)
        going_on = [candidate for candidate in best if not self._ends(candidate, count)]
        return self._go_on(self._chosen(going_on), outlook, row)

    def outputs(self) -> list[Draft]:
        return self._ended[: self._strategy.returned]

    def _best(self, outlook: Outlook, row: int, count: int) -> list[Candidate]:
        """The best candidates of all beams together, best first."""
        scores = self._under_rules(outlook, row, count)
        found = self._candidates_of_each(outlook, row, count, scores)
        found = [candidate for candidate in found if candidate.score > -np.inf]
        found.sort(key=lambda candidate: -candidate.score)
        return found[: self._candidates]

    def _chosen(self, candidates: list[Candidate]) -> list[Candidate]:
        """Those of the candidates, best first, that get a place in the beam; best first."""
        return candidates[: self._strategy.width]

    def _ends(self, candidate: Candidate, count: int) -> bool:
        return candidate.token in self._rules.end_tokens or count == self._rules.limit

    def _under_rules(self, outlook: Outlook, row: int, count: int) -> NDArray[np.float32] | None:
        """The scores of next tokens, log-probabilities after the rules, of all of the request's
        rows: [width, V]; None where no rule changes any.
        """
        rules = self._rules
        if rules.forced_at(count) is not None or rules.excluded(count) is not None:
            return None
        scores = outlook.logits(row, self._strategy.width)
        for draft, place in zip(self._running, self._rows, strict=True):
            scores[place] -= outlook.normalizer(row + place)
            self._rules.apply(scores[place], draft.row, count)
        return scores

    def _candidates_of_each(
        self, outlook: Outlook, row: int, count: int, scores: NDArray[np.float32] | None
    ) -> list[Candidate]:
        """As many of the best candidates of each beam as all beams together can need.

        Args:
            scores: from `_under_rules`
        """
        forced = self._rules.forced_at(count)
        if forced is not None:
            return [Candidate(score, beam, forced, 0.0) for beam, score in enumerate(self._scores)]
        found: list[Candidate] = []
        if scores is None:
            excluded = self._rules.excluded(count) or set()
            best = outlook.candidates(row, self._strategy.width, self._candidates + len(excluded))
            tokens, log_probabilities = best.tokens.tolist(), best.log_probabilities.tolist()
            for beam, (score, place) in enumerate(zip(self._scores, self._rows, strict=True)):
                allowed = outlook.allowed(row + place)
                found += [
                    Candidate(score + among_all, beam, token, among_all - allowed)
                    for token, among_all in zip(
                        tokens[place], log_probabilities[place], strict=True
                    )
                    if token not in excluded
                ]
            return found
        tokens = best_tokens(scores, min(self._candidates, scores.shape[1])).tolist()
        for beam, (score, place) in enumerate(zip(self._scores, self._rows, strict=True)):
            normalizer = outlook.allowed_normalizer(row + place)
            found += [
                Candidate(
                    score + float(scores[place, token]),
                    beam,
                    token,
                    outlook.logit(row + place, token) - normalizer,
                )
                for token in tokens[place]
            ]
        return found

    def _child(self, candidate: Candidate, outlook: Outlook, row: int) -> Draft:
        place = row + self._rows[candidate.beam]
        alternatives: Alternatives = ()
        if self._rules.forced_at(self._running[candidate.beam].count + 1) is None:
            alternatives = outlook.alternatives(place, self._rules.alternatives)
        return self._running[candidate.beam].followed_by(
            candidate.token, candidate.log_probability, alternatives
        )

    def _end(self, draft: Draft, score: float) -> None:
        """Rank a hypothesis that has ended among the others; the worst leaves."""
        draft.score = score / float(draft.count) ** self._strategy.length_penalty
        self._ended.append(draft)
        self._ended.sort(key=lambda ended: -ended.score)
        del self._ended[self._strategy.beams :]

    def _go_on(self, candidates: list[Candidate], outlook: Outlook, row: int) -> Continuation:
        """These are the running hypotheses from now on."""
        children = [self._child(candidate, outlook, row) for candidate in candidates]
        self._scores = [candidate.score for candidate in candidates]
        tokens = [0] * self._strategy.width
        self._rows, parents = placed([self._rows[c.beam] for c in candidates], len(tokens))
        for place, candidate in zip(self._rows, candidates, strict=True):
            tokens[place] = candidate.token
        self._running = children
        self.finished = self._is_finished()
        return Continuation(tokens, parents)

    def _is_finished(self) -> bool:
        strategy = self._strategy
        if not self._running:
            return True
        if len(self._ended) < strategy.beams:
            return False
        if strategy.early_stopping is True:
            return True
        longest = strategy.early_stopping == "never" and strategy.length_penalty > 0
        length = self._rules.limit if longest else self._running[0].count
        possible = self._best_score() / float(length) ** strategy.length_penalty
        return bool(possible <= self._ended[-1].score)

    def _best_score(self) -> float:
        """Of the running hypotheses."""
        return self._scores[0]


def placed(rows: Sequence[int], width: int) -> tuple[list[int], list[int]]:
    """A row for each of the hypotheses that go on: the first child of a hypothesis keeps its row,
    the others take rows of hypotheses without children, so that few rows are overwritten.

    Args:
        rows: of the hypothesis that each of them continues
        width: how many rows there are, at least as many as children

    Returns:
        the row of each, and which row each of all rows continues, see `search.Continuation`
    """
    free = iter(sorted(set(range(width)) - set(rows)))
    places, parents = [], list(range(width))
    for index, row in enumerate(rows):
        place = row if row not in rows[:index] else next(free)
        parents[place] = row
        places.append(place)
    return places, parents
