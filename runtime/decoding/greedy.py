"""Greedy search: the most probable token, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .request import Request
from .search import Outlook
from .single import SingleSearch


@dataclass(frozen=True)
class Greedy:
    """See `search.Strategy`."""

    @property
    def width(self) -> int:
        return 1

    def begin(self, request: Request) -> GreedySearch:
        return GreedySearch(request)


class GreedySearch(SingleSearch):
    """Where no rule interferes, the graph's own choice is taken, and the logits are not looked
    at.
    """

    def _sees_logits(self, count: int) -> bool:
        return bool(self._rules.active(count))

    def _choose(self, outlook: Outlook, row: int, count: int) -> tuple[int, float]:
        if not self._sees_logits(count):
            return outlook.choice(row)
        return super()._choose(outlook, row, count)

    def _pick(self, scores: NDArray[np.float32], count: int) -> int:
        return int(scores.argmax())
