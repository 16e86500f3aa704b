"""Greedy search: the most probable token, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .request import Request
from .search import NOTHING, Continuation, Draft, Need, Outlook, finish, first_draft


@dataclass(frozen=True)
class Greedy:
    """See `search.Strategy`."""

    @property
    def width(self) -> int:
        return 1

    def begin(self, request: Request) -> GreedySearch:
        return GreedySearch(request)


class GreedySearch:
    """One hypothesis. Where no rule interferes, the graph's own choice is taken, and the logits are
    not looked at."""

    def __init__(self, request: Request) -> None:
        self._rules = request.rules
        self.draft = first_draft(request)
        self.finished = self.draft.count > 0 and finish(self.draft, self._rules)

    def need(self) -> Need:
        rules, count = self._rules, self.draft.count + 1
        if count == rules.limit and rules.forced_last is not None:
            return NOTHING
        return Need(rules.alternatives, bool(rules.active(count)))

    def advance(self, outlook: Outlook, row: int) -> Continuation:
        rules, draft = self._rules, self.draft
        count = draft.count + 1
        if count == rules.limit and rules.forced_last is not None:
            draft.append(rules.forced_last, 0.0)
        else:
            token, log_probability = outlook.choice(row)
            if rules.active(count):
                token, log_probability = self._choose(outlook, row, count)
            draft.append(token, log_probability, outlook.alternatives(row, rules.alternatives))
        self.finished = finish(draft, rules)
        draft.score += draft.log_probabilities[-1]
        return Continuation([draft.row.tokens[-1]])

    def outputs(self) -> list[Draft]:
        return [self.draft]

    def _choose(self, outlook: Outlook, row: int, count: int) -> tuple[int, float]:
        """The best token that the rules allow, with the model's own log-probability.

        Where no token is left, the choice is token 0, as at Hugging Face; like a token that is
        forced, it has no probability, and 0 stands for its logarithm.
        """
        scores: NDArray[np.float32] = outlook.logits(row, 1)[0]
        self._rules.apply(scores, self.draft.row, count)
        token = int(scores.argmax())
        if scores[token] == -np.inf:
            return token, 0.0
        return token, outlook.logit(row, token) - outlook.allowed_normalizer(row)
