"""Beam search, as Hugging Face's `generate` does it (transformers 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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
    first_draft,
)

HOPELESS = -1e9
"""Added to the score of what must not be chosen as long as there is anything else."""


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


class _Candidate(NamedTuple):
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

    A running hypothesis has one of the request's rows. One child of each hypothesis keeps its row,
    so that only rows of hypotheses without children are overwritten.
    """

    def __init__(self, strategy: Beam, request: Request) -> None:
        self._strategy, self._rules = strategy, request.rules
        self.draft = first_draft(request)
        self._running = [self.draft]
        self._scores = [0.0] + [HOPELESS] * (strategy.beams - 1)
        self._rows = list(range(strategy.beams))
        self._ended: list[Draft] = []
        self._candidates = max(2, 1 + len(set(request.rules.end_tokens))) * strategy.beams
        self.finished = False
        if self.draft.count:  # a forced token
            self._take_forced()

    def need(self) -> Need:
        rules, count = self._rules, self._running[0].count + 1
        if self._is_forced(count):
            return NOTHING
        if rules.suppressed or rules.active(count):
            return Need(rules.alternatives, logits=True)
        return Need(max(self._candidates, rules.alternatives))

    def advance(self, outlook: Outlook, row: int) -> Continuation:
        beams = self._strategy.beams
        if len(self._running) < beams:  # the first time; the others wait for its children
            self._running = self._running[:1] * beams
        count = self._running[0].count + 1
        best = self._best(outlook, row, count)
        ending = [c.token in self._rules.end_tokens or count == self._rules.limit for c in best]
        # Only the first `beams` candidates may end; the others are there so that enough can go on.
        for candidate, ends in zip(best[:beams], ending, strict=False):
            if ends:
                self._end(self._child(candidate, outlook, row), candidate.score)
        going_on = [
            candidate._replace(score=candidate.score + HOPELESS) if ends else candidate
            for candidate, ends in zip(best, ending, strict=True)
        ]
        going_on.sort(key=lambda candidate: -candidate.score)
        return self._go_on(going_on[:beams], outlook, row)

    def outputs(self) -> list[Draft]:
        return self._ended[: self._strategy.returned]

    def _best(self, outlook: Outlook, row: int, count: int) -> list[_Candidate]:
        """The best candidates of all beams together, best first."""
        rules, beams = self._rules, self._strategy.beams
        found: list[_Candidate] = []
        if self._is_forced(count) and rules.forced_last is not None:
            found = [
                _Candidate(score, beam, rules.forced_last, 0.0)
                for beam, score in enumerate(self._scores)
            ]
        elif rules.suppressed or rules.active(count):
            found = self._best_allowed(outlook, row, count)
        else:
            best = outlook.candidates(row, beams, self._candidates)
            tokens, log_probabilities = best.tokens.tolist(), best.log_probabilities.tolist()
            for beam, (score, place) in enumerate(zip(self._scores, self._rows, strict=True)):
                found += [
                    _Candidate(score + log_probability, beam, token, log_probability)
                    for token, log_probability in zip(
                        tokens[place], log_probabilities[place], strict=True
                    )
                ]
        found.sort(key=lambda candidate: -candidate.score)
        return found[: self._candidates]

    def _best_allowed(self, outlook: Outlook, row: int, count: int) -> list[_Candidate]:
        """The candidates of each beam under the rules, which act on log-probabilities."""
        logits = outlook.logits(row, self._strategy.beams)
        scores = logits.copy()
        for draft, place in zip(self._running, self._rows, strict=True):
            scores[place] -= outlook.normalizer(row + place)
            self._rules.apply(scores[place], draft.row, count)
        best = best_tokens(scores, min(self._candidates, scores.shape[1]))
        return [
            _Candidate(
                score + float(scores[place, token]),
                beam,
                token,
                float(logits[place, token]) - outlook.allowed_normalizer(row + place),
            )
            for beam, (score, place) in enumerate(zip(self._scores, self._rows, strict=True))
            for token in best[place].tolist()
        ]

    def _child(self, candidate: _Candidate, outlook: Outlook, row: int) -> Draft:
        place = row + self._rows[candidate.beam]
        alternatives: Alternatives = ()
        if not self._is_forced(self._running[candidate.beam].count + 1):
            alternatives = outlook.alternatives(place, self._rules.alternatives)
        return self._running[candidate.beam].followed_by(
            candidate.token, candidate.log_probability, alternatives
        )

    def _end(self, draft: Draft, score: float) -> None:
        """Rank a hypothesis that has ended among the others; the worst leaves."""
        token = draft.row.tokens[-1]
        draft.end_token = token if token in self._rules.end_tokens else None
        draft.score = score / float(draft.count) ** self._strategy.length_penalty
        self._ended.append(draft)
        self._ended.sort(key=lambda ended: -ended.score)
        del self._ended[self._strategy.beams :]

    def _go_on(self, candidates: list[_Candidate], outlook: Outlook, row: int) -> Continuation:
        """These are the running hypotheses from now on."""
        children = [self._child(candidate, outlook, row) for candidate in candidates]
        self._scores = [candidate.score for candidate in candidates]
        tokens, parents = [0] * len(children), list(range(len(children)))
        # The first child of a hypothesis keeps its row; the others take those without children.
        first: dict[int, int] = {}
        for index, candidate in enumerate(candidates):
            first.setdefault(self._rows[candidate.beam], index)
        free = iter([place for place in self._rows if place not in first])
        places = []
        for index, candidate in enumerate(candidates):
            place = parent = self._rows[candidate.beam]
            if first[parent] != index:
                place = next(free)
                parents[place] = parent
            tokens[place] = candidate.token
            places.append(place)
        self._rows = places
        self._running = children
        self.finished = self._is_finished()
        return Continuation(tokens, parents)

    def _is_finished(self) -> bool:
        strategy, count = self._strategy, self._running[0].count
        if count >= self._rules.limit:
            return True
        if len(self._ended) < strategy.beams:
            return False
        if strategy.early_stopping is True:
            return True
        longest = strategy.early_stopping == "never" and strategy.length_penalty > 0
        length = self._rules.limit if longest else count
        possible = self._scores[0] / float(length) ** strategy.length_penalty
        return bool(possible <= self._ended[-1].score)

    def _is_forced(self, count: int) -> bool:
        return count == self._rules.limit and self._rules.forced_last is not None

    def _take_forced(self) -> None:
        """The first token was forced: it may be the last."""
        token = self.draft.row.tokens[-1]
        if token in self._rules.end_tokens or self.draft.count >= self._rules.limit:
            self._end(self.draft, 0.0)
            self.finished = True
