"""Beam search with the results of Hugging Face's `generate` (transformers 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.settings.generation_settings import EarlyStopping

from ..backends.prediction import best_tokens
from .request import Request
from .search import (
    SELECTED_TOKENS,
    Alternatives,
    NextTokens,
    RequiredOutputs,
    StepScores,
    TokenSequence,
    finish,
    first_sequence,
)


@dataclass(frozen=True)
class Beam:
    """The strategy of beam search."""

    beams: int
    length_penalty: float = 1.0
    """The sum of log-probabilities is divided by length ** length_penalty to rank finished
    hypotheses; more than 0 favours long ones. The end token counts."""
    early_stopping: EarlyStopping = False
    """True: stop as soon as `beams` hypotheses are finished. False: stop when no running
    hypothesis, at its current length, ranks above the worst finished one. "never": like False,
    but at the best length that a running hypothesis could reach."""
    returned: int = 1
    """Number of returned hypotheses, at most `beams`."""

    @property
    def width(self) -> int:
        """The number of batch rows for a request."""
        return self.beams

    def begin(self, request: Request) -> BeamSearch:
        """Begin the search for the output of a request."""
        return BeamSearch(self, request)


class Candidate(NamedTuple):
    """A hypothesis with one more token."""

    score: float
    """Sum of log-probabilities after logits processors."""
    beam: int
    """Index of the hypothesis among the running ones."""
    token: int
    log_probability: float
    """The model's own log-probability of the token."""


class BeamSearch:
    """The running and the finished hypotheses of one source, both best first.

    Each running hypothesis has one of the request's rows, see `assign_rows`. There are fewer
    hypotheses than beams at the first step, or if the rules allow fewer tokens; Hugging Face
    fills up with copies with scores of -1e9 and less.
    """

    def __init__(self, strategy: Beam, request: Request) -> None:
        self._strategy, self._rules = strategy, request.rules
        self.sequence = first_sequence(request)
        self._running = [self.sequence]
        self._scores, self._rows = [0.0], [0]
        self._complete: list[TokenSequence] = []
        self._candidates = max(2, 1 + len(set(request.rules.end_tokens))) * strategy.width
        # A forced first token may end the output.
        self.finished = self.sequence.count > 0 and finish(self.sequence, self._rules)
        if self.finished:
            self._end(self.sequence, 0.0)

    def required_outputs(self) -> RequiredOutputs:
        """Return the outputs of the next step that `advance` requires."""
        rules, count = self._rules, self._running[0].count + 1
        if rules.forced_at(count) is not None:
            return SELECTED_TOKENS
        excluded = rules.excluded(count)
        if excluded is None:
            return RequiredOutputs(rules.alternatives, logits=True)
        return RequiredOutputs(max(self._candidates + len(excluded), rules.alternatives))

    def advance(self, step: StepScores, row: int) -> NextTokens:
        """Continue with the best candidates, and collect finished hypotheses."""
        count = self._running[0].count + 1
        best = self._best(step, row, count)
        # Only the first `width` candidates may end; the others fill the beam.
        for candidate in self._chosen(best):
            if self._ends(candidate, count):
                child = self._child(candidate, step, row)
                finish(child, self._rules)
                self._end(child, candidate.score)
        continuing = [candidate for candidate in best if not self._ends(candidate, count)]
        return self._continue(self._chosen(continuing), step, row)

    def outputs(self) -> list[TokenSequence]:
        """Return the outputs, best first."""
        return self._complete[: self._strategy.returned]

    def _best(self, step: StepScores, row: int, count: int) -> list[Candidate]:
        scores = self._under_rules(step, row, count)
        candidates = self._candidates_of_each(step, row, count, scores)
        candidates = [candidate for candidate in candidates if candidate.score > -np.inf]
        candidates.sort(key=lambda candidate: -candidate.score)
        return candidates[: self._candidates]

    def _chosen(self, candidates: list[Candidate]) -> list[Candidate]:
        return candidates[: self._strategy.width]

    def _ends(self, candidate: Candidate, count: int) -> bool:
        return candidate.token in self._rules.end_tokens or count == self._rules.limit

    def _under_rules(self, step: StepScores, row: int, count: int) -> NDArray[np.float32] | None:
        """Return scores under the rules, [width, V]; None if these only exclude tokens."""
        rules = self._rules
        if rules.forced_at(count) is not None or rules.excluded(count) is not None:
            return None
        scores = step.logits(row, self._strategy.width)
        for sequence, place in zip(self._running, self._rows, strict=True):
            scores[place] -= step.normalizer(row + place)
            rules.apply(scores[place], sequence.row, count)
            scores[place] -= rules.normalizer(scores[place])
        return scores

    def _candidates_of_each(
        self, step: StepScores, row: int, count: int, scores: NDArray[np.float32] | None
    ) -> list[Candidate]:
        forced = self._rules.forced_at(count)
        if forced is not None:
            return [Candidate(score, beam, forced, 0.0) for beam, score in enumerate(self._scores)]
        found: list[Candidate] = []
        if scores is None:
            excluded = self._rules.excluded(count) or set()
            best = step.candidates(row, self._strategy.width, self._candidates + len(excluded))
            tokens, log_probabilities = best.tokens.tolist(), best.log_probabilities.tolist()
            for beam, (score, place) in enumerate(zip(self._scores, self._rows, strict=True)):
                allowed = step.allowed(row + place)
                excess = allowed if self._rules.renormalize else 0.0
                found += [
                    Candidate(score + among_all - excess, beam, token, among_all - allowed)
                    for token, among_all in zip(
                        tokens[place], log_probabilities[place], strict=True
                    )
                    if token not in excluded
                ]
            return found
        tokens = best_tokens(scores, min(self._candidates, scores.shape[1])).tolist()
        for beam, (score, place) in enumerate(zip(self._scores, self._rows, strict=True)):
            normalizer = step.allowed_normalizer(row + place)
            found += [
                Candidate(
                    score + float(scores[place, token]),
                    beam,
                    token,
                    step.logit(row + place, token) - normalizer,
                )
                for token in tokens[place]
            ]
        return found

    def _child(self, candidate: Candidate, step: StepScores, row: int) -> TokenSequence:
        place = row + self._rows[candidate.beam]
        alternatives: Alternatives = ()
        if self._rules.forced_at(self._running[candidate.beam].count + 1) is None:
            alternatives = step.alternatives(place, self._rules.alternatives)
        return self._running[candidate.beam].followed_by(
            candidate.token, candidate.log_probability, alternatives
        )

    def _end(self, sequence: TokenSequence, score: float) -> None:
        sequence.score = score / float(sequence.count) ** self._strategy.length_penalty
        self._complete.append(sequence)
        self._complete.sort(key=lambda hypothesis: -hypothesis.score)
        del self._complete[self._strategy.beams :]

    def _continue(self, candidates: list[Candidate], step: StepScores, row: int) -> NextTokens:
        children = [self._child(candidate, step, row) for candidate in candidates]
        self._scores = [candidate.score for candidate in candidates]
        tokens = [0] * self._strategy.width
        self._rows, parents = assign_rows([self._rows[c.beam] for c in candidates], len(tokens))
        for place, candidate in zip(self._rows, candidates, strict=True):
            tokens[place] = candidate.token
        self._running = children
        self.finished = self._is_finished()
        return NextTokens(tokens, parents)

    def _is_finished(self) -> bool:
        strategy = self._strategy
        if not self._running:
            return True
        if len(self._complete) < strategy.beams:
            return False
        if strategy.early_stopping is True:
            return True
        longest = strategy.early_stopping == "never" and strategy.length_penalty > 0
        length = self._rules.limit if longest else self._running[0].count
        possible = self._best_score() / float(length) ** strategy.length_penalty
        return bool(possible <= self._complete[-1].score)

    def _best_score(self) -> float:
        return self._scores[0]


def assign_rows(rows: Sequence[int], width: int) -> tuple[list[int], list[int]]:
    """Assign rows to hypotheses so that few rows are overwritten.

    The first child of a hypothesis keeps its row; other children get rows without children.
    Returns the row of each child, and the parent of each row, see `search.NextTokens`.
    """
    free = iter(sorted(set(range(width)) - set(rows)))
    assigned, parents = [], list(range(width))
    for index, row in enumerate(rows):
        target = row if row not in rows[:index] else next(free)
        parents[target] = row
        assigned.append(target)
    return assigned, parents
