"""Searches that follow one hypothesis, token by token: greedy search and sampling."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from .request import Request
from .search import NOTHING, Continuation, Draft, Need, Outlook, finish, first_draft


class SingleSearch(ABC):
    """See `search.Search`."""

    def __init__(self, request: Request) -> None:
        self._rules = request.rules
        self.draft = first_draft(request)
        self.finished = self.draft.count > 0 and finish(self.draft, self._rules)
        self._outputs = [self.draft]

    def need(self) -> Need:
        count = self.draft.count + 1
        if self._rules.forced_at(count) is not None:
            return NOTHING
        return Need(self._rules.alternatives, self._sees_logits(count))

    def advance(self, outlook: Outlook, row: int) -> Continuation:
        rules, draft = self._rules, self.draft
        count = draft.count + 1
        forced = rules.forced_at(count)
        if forced is not None:
            draft.append(forced, 0.0)
        else:
            token, log_probability = self._choose(outlook, row, count)
            if rules.forbid(draft.row, token):  # no token was left
                self._outputs, self.finished = [], True
                return Continuation([token])
            draft.append(token, log_probability, outlook.alternatives(row, rules.alternatives))
        self.finished = finish(draft, rules)
        if self.finished:
            draft.score = draft.log_probability
        return Continuation([draft.row.tokens[-1]])

    def outputs(self) -> list[Draft]:
        return self._outputs

    @abstractmethod
    def _sees_logits(self, count: int) -> bool:
        """Whether the count-th new token is chosen by all logits."""

    @abstractmethod
    def _pick(self, scores: NDArray[np.float32], count: int) -> int:
        """The count-th new token, by scores [V] of which some are finite."""

    def _choose(self, outlook: Outlook, row: int, count: int) -> tuple[int, float]:
        """A token that the rules allow, with the model's own log-probability.

        Where no token is left, the choice is token 0, as at Hugging Face; like a token that is
        forced, it has no probability, and 0 stands for its logarithm. If it must not occur, there
        is no output.
        """
        scores: NDArray[np.float32] = outlook.logits(row, 1)[0]
        self._rules.apply(scores, self.draft.row, count)
        if scores.max() == -np.inf:
            return 0, 0.0
        token = self._pick(scores, count)
        return token, outlook.logit(row, token) - outlook.allowed_normalizer(row)
