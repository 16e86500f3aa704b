"""How far a bundle may be from itself, where rounding alone tells two computations apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..tolerances import NEGLIGIBLE

LARGEST_OF_MEAN = 300.0
"""How many times the mean the divergence of one position may be. Right bundles reach 40."""


@dataclass(frozen=True)
class Slack:
    """
    Attributes:
        channels: of logits, the largest difference of each; None below fp32, where activations that
            are rounded to one side or the other move whole distributions
        mean: nats of divergence on average: as much as the bundle is from the oracle
        of_size: of other outputs, the largest difference relative to their largest value
    """

    channels: NDArray[Any] | None
    mean: float = NEGLIGIBLE
    of_size: float = 3e-5

    @property
    def largest(self) -> float:
        """Nats of divergence at one position."""
        return LARGEST_OF_MEAN * self.mean

    def mean_excess(self, divergences: Sequence[float]) -> float:
        """The mean of some divergences as a multiple of what is allowed; 0 of none."""
        return float(np.mean(divergences)) / self.mean if divergences else 0.0
