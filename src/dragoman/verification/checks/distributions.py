"""Level 1: how far the distributions of the next token are from the oracle's, along the oracle's
own outputs. It needs no references.

The distance is the Kullback-Leibler divergence of the bundle's distribution from the oracle's: how
many more nats a token that the oracle draws costs whoever believes the bundle. Below fp32 its mean
is held to what the precision does to the oracle itself, see `rounded_oracle`, and on inputs of the
model's own kind to what trained models bear.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.optimize.compare import NOT_FINITE
from dragoman.reference_model import AutoregressiveModel
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.records import Distance, DistributionParity

from ..forced import ForcedBatch, oracle_pass
from ..tolerances import DIVERGENCE_LIMITS, NEGLIGIBLE, ROUNDING_MULTIPLES, TOLERANCES

CHUNK = 2**22
"""The most numbers that are turned into probabilities at once."""


class DistributionMeter:
    """
    Args:
        rounded: see `rounded_oracle`; None at fp32
        random: whether the inputs are, so that nothing is said about quality
    """

    def __init__(
        self, precision: Precision, rounded: AutoregressiveModel | None, *, random: bool = False
    ) -> None:
        self._precision, self._rounded, self._random = precision, rounded, random
        self._of_bundle, self._of_rounded = DistanceMeter(), DistanceMeter()

    def add(self, batch: ForcedBatch) -> None:
        expected = batch.logits[batch.chosen_mask]
        self._of_bundle.add(expected, batch.scored[batch.chosen_mask])
        if self._rounded is not None:
            _, logits = oracle_pass(self._rounded, batch.source, batch.source_mask, batch.read)
            self._of_rounded.add(expected, logits[batch.chosen_mask])

    def add_logits(
        self,
        expected: NDArray[np.float32],
        found: NDArray[np.floating],
        rounded: NDArray[np.float32] | None,
    ) -> None:
        """Logits [P, V] of all three; no rounded ones at fp32."""
        self._of_bundle.add(expected, found)
        if rounded is not None:
            self._of_rounded.add(expected, rounded)

    def result(self, *, labels: bool = False) -> DistributionParity:
        """
        Args:
            labels: whether the choices are the output: at fp32 all must be the same, but for ties
        """
        bundle, rounded, allowed = self._of_bundle.result(), None, None
        passed, ties = bundle.largest < NOT_FINITE, 0
        if labels and self._precision == "fp32":
            ties = self._of_bundle.ties
            passed = passed and self._of_bundle.same + ties == self._of_bundle.positions
        if self._of_rounded.positions:
            rounded = self._of_rounded.result()
            allowed = max(NEGLIGIBLE, ROUNDING_MULTIPLES[self._precision] * rounded.mean)
            if not self._random:
                allowed = min(allowed, DIVERGENCE_LIMITS[self._precision])
            passed = passed and bundle.mean <= allowed
        positions = self._of_bundle.positions
        return DistributionParity(positions, bundle, rounded, allowed, passed, ties)


class DistanceMeter:
    """The distance between distributions, over several batches of positions.

    Attributes:
        same: positions with the same choice
        ties: other choices that the oracle holds to be as good as its own: their logits are closer
            than the tolerance of tensors at fp32, which is relative to the position's largest
    """

    def __init__(self) -> None:
        self._divergences: list[NDArray[np.float64]] = []
        self.same = self.ties = 0

    @property
    def positions(self) -> int:
        return sum(map(len, self._divergences))

    def add(self, expected: NDArray[np.float32], found: NDArray[np.floating]) -> None:
        """
        Args:
            expected, found: logits [P, V]
        """
        rows = max(1, CHUNK // expected.shape[1])
        for first in range(0, len(expected), rows):
            p = torch.from_numpy(np.ascontiguousarray(expected[first : first + rows]))
            q = torch.from_numpy(found[first : first + rows].astype(np.float32))
            self._divergences.append(divergence(p, q).numpy())
            chosen = q.argmax(-1)
            same = p.argmax(-1) == chosen
            margin = p.amax(-1) - p.gather(-1, chosen[:, None])[:, 0]
            tie = margin < TOLERANCES["fp32"] * p.abs().amax(-1).clamp(min=1)
            self.same += int(same.sum())
            self.ties += int((tie & ~same).sum())

    def result(self) -> Distance:
        divergences = np.concatenate(self._divergences)
        return Distance(
            mean=float(divergences.mean()),
            median=float(np.median(divergences)),
            percentile_99=float(np.quantile(divergences, 0.99)),
            largest=float(divergences.max()),
            same_choice=self.same / len(divergences),
        )


def divergence(expected: Tensor, found: Tensor) -> Tensor:
    """The Kullback-Leibler divergence of each position, float64 [P], from logits [P, V].

    It is `NOT_FINITE` where logits are not finite.
    """
    p, q = (logits.double().log_softmax(-1) for logits in (expected, found))
    # Rounding to 64 bits may leave a sum slightly below 0.
    distance = (p.exp() * (p - q)).sum(-1).clamp(min=0)
    return distance.nan_to_num(nan=NOT_FINITE, posinf=NOT_FINITE).clamp(max=NOT_FINITE)
