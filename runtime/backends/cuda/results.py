"""What a step chooses, as it lies in memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..interface import Step
from .device import Bytes
from .layout import ALIGNMENT, multiple_of


class ResultLayout(NamedTuple):
    """The token of each row, then the log-probability of each.

    Attributes:
        widest: room for this many rows
    """

    widest: int

    @property
    def tokens(self) -> int:
        """Bytes of the tokens, with which the log-probabilities begin."""
        return multiple_of(ALIGNMENT, 8 * self.widest)

    @property
    def size(self) -> int:
        return self.tokens + 4 * self.widest

    def read(self, memory: Bytes, rows: NDArray[np.intp]) -> Step:
        """A copy of the results of these rows."""
        tokens = memory[: self.tokens].view(np.int64)
        log_probabilities = memory[self.tokens : self.size].view(np.float32)
        return Step(tokens[rows], log_probabilities[rows])
