"""Level 1: how far tensors and distributions of the next token are from the oracle's.

Cross keys and values, and teacher-forced logits, must be within a tolerance at fp32. Below, they
are only measured: trained speech encoders write numbers a hundred times larger than others at a few
positions ("Massive Activations", Sun et al. 2024), and rounding moves them, with no effect on
words.

Distributions are compared along the oracle's outputs, by the Kullback-Leibler divergence of the
bundle's from the oracle's. Below fp32 its mean is held to what the precision does to the oracle,
see `rounded_oracle`, and on inputs other than the default ones to a fixed limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.reference_model import AutoregressiveModel
from dragoman.runtime.format.manifest import Manifest, Precision
from dragoman.runtime.format.parity import NOT_FINITE, Distance, DistributionParity, TensorParity

from ..oracle import ForcedBatch, oracle_pass
from ..tolerances import DIVERGENCE_LIMITS, NEGLIGIBLE, ROUNDING_MULTIPLES, TOLERANCES

HEADS_LAST = (0, 2, 1, 3)


class TensorMeters:
    """Measures every tensor of a bundle that is compared."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._meters: dict[str, DifferenceMeter] = {}

    def add(self, batch: ForcedBatch) -> None:
        """Measure another batch."""
        encoder = self._manifest.graphs.get("encoder")
        for tensor in encoder.outputs if encoder else ():
            assert tensor.layer is not None
            expected = batch.cross[tensor.layer][0 if tensor.role == "cross_key" else 1].numpy()
            self._meters.setdefault(tensor.name, DifferenceMeter()).add(
                batch.encoded[tensor.name].transpose(HEADS_LAST)[batch.source_mask],
                expected.transpose(HEADS_LAST)[batch.source_mask],
            )
        suppressed = self._manifest.generation.suppressed_token_ids
        meter = self._meters.setdefault("logits", DifferenceMeter(suppressed))
        # Row by row: a copy of all logits may take as much memory as the batch.
        for found, expected, read in zip(batch.scored, batch.logits, batch.read_mask, strict=True):
            meter.add(found[read], expected[read])

    @property
    def largest_logit(self) -> float:
        """The oracle's largest logit in absolute value, without suppressed tokens."""
        return self._meters["logits"].scale

    def results(self) -> list[TensorParity]:
        """Judge every tensor."""
        precision = self._manifest.precision
        tolerance = TOLERANCES[precision] if precision == "fp32" else None
        return [meter.result(name, tolerance) for name, meter in self._meters.items()]


class DifferenceMeter:
    """The difference between two tensors [positions, ...], by position, over several batches.

    Args:
        unscaled: indices of the last axis that do not count in `scale`
    """

    def __init__(self, unscaled: Sequence[int] = ()) -> None:
        self._unscaled = list(unscaled)
        self.relative = self.scale = 0.0
        self.absolute: list[float] = []

    def add(self, found: NDArray[np.floating], expected: NDArray[np.floating]) -> None:
        """Measure more positions."""
        rows = max(1, CHUNK * len(found) // max(1, found.size))
        for first in range(0, len(found), rows):
            self._add(found[first : first + rows], expected[first : first + rows])

    def _add(self, found: NDArray[np.floating], expected: NDArray[np.floating]) -> None:
        difference, magnitude = differences(found, expected), np.abs(expected)
        scaling = np.delete(magnitude, self._unscaled, -1) if self._unscaled else magnitude
        self.scale = max(self.scale, float(scaling.max(initial=0.0)))
        self.absolute += difference.reshape(len(difference), -1).max(axis=1).tolist()
        self.relative = max(self.relative, float((difference / np.maximum(magnitude, 1e-3)).max()))

    def result(self, name: str, tolerance: float | None) -> TensorParity:
        """Judge the largest difference; without a tolerance, values need only be finite."""
        differences = np.asarray(self.absolute) / max(1.0, self.scale)
        difference = float(differences.max())
        finite = max(self.absolute) < NOT_FINITE
        limit = np.inf if tolerance is None else tolerance
        return TensorParity(
            name=name,
            largest_absolute=max(self.absolute),
            largest_relative=self.relative,
            difference=difference,
            tolerance=tolerance,
            passed=finite if tolerance is None else difference <= tolerance,
            positions=len(differences),
            positions_beyond=int(np.count_nonzero(differences > limit)),
        )


CHUNK = 2**22
"""The most numbers that are turned into probabilities at once."""


class DistributionMeter:
    """Compares next-token distributions of a bundle with those of the oracle.

    Args:
        rounded: see `rounded_oracle`, shows how far rounding moves them; None at fp32
    """

    def __init__(
        self, precision: Precision, rounded: AutoregressiveModel | None, *, random: bool = False
    ) -> None:
        self._precision, self._rounded, self._random = precision, rounded, random
        self._of_bundle, self._of_rounded = DistanceMeter(), DistanceMeter()

    def add(self, batch: ForcedBatch) -> None:
        """Measure another batch."""
        _add_rows(self._of_bundle, batch, batch.scored)
        if self._rounded is not None:
            _, logits = oracle_pass(self._rounded, batch.source, batch.source_mask, batch.read)
            _add_rows(self._of_rounded, batch, logits)

    def add_logits(
        self,
        expected: NDArray[np.float32],
        found: NDArray[np.floating],
        rounded: NDArray[np.float32] | None,
    ) -> None:
        """Measure logits [P, V] of all three; without rounded ones at fp32."""
        self._of_bundle.add(expected, found)
        if rounded is not None:
            self._of_rounded.add(expected, rounded)

    @property
    def positions(self) -> int:
        """How many positions were measured; 0 if all tokens were forced and none was chosen."""
        return self._of_bundle.positions

    def result(self, *, labels: bool = False) -> DistributionParity:
        """Judge the distributions of at least one position.

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


def _add_rows(meter: DistanceMeter, batch: ForcedBatch, found: NDArray[np.floating]) -> None:
    rows = zip(batch.logits, found, batch.chosen_mask, strict=True)
    for expected, other, chosen in rows:
        if chosen.any():
            meter.add(expected[chosen], other[chosen])


class DistanceMeter:
    """Measures the distance between distributions, over several batches of positions.

    Attributes:
        ties: other choices whose logit is as close to the oracle's best as the tolerance of tensors
            at fp32, relative to the position's largest logit
    """

    def __init__(self) -> None:
        self._divergences: list[NDArray[np.float64]] = []
        self.same = self.ties = 0

    @property
    def positions(self) -> int:
        """How many positions were measured."""
        return sum(map(len, self._divergences))

    def add(self, expected: NDArray[np.float32], found: NDArray[np.floating]) -> None:
        """Measure more positions, by logits [P, V]."""
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
        """Summarize all positions."""
        divergences = np.concatenate(self._divergences)
        return Distance(
            mean=float(divergences.mean()),
            median=float(np.median(divergences)),
            percentile_99=float(np.quantile(divergences, 0.99)),
            largest=float(divergences.max()),
            same_choice=self.same / len(divergences),
        )


def differences(found: NDArray[Any], expected: NDArray[Any]) -> NDArray[np.float64]:
    """Compute absolute differences in float64; `NOT_FINITE` where they are not finite."""
    apart: NDArray[np.float64] = np.abs(found.astype(np.float64) - expected)
    apart[~np.isfinite(apart)] = NOT_FINITE
    return apart


def divergence(expected: Tensor, found: Tensor) -> Tensor:
    """Compute the Kullback-Leibler divergence of each position, float64 [P], from logits [P, V].

    It is `NOT_FINITE` where logits are not finite.
    """
    p, q = (logits.double().log_softmax(-1) for logits in (expected, found))
    # Rounding to 64 bits may leave a sum slightly below 0.
    distance = (p.exp() * (p - q)).sum(-1).clamp(min=0)
    return distance.nan_to_num(nan=NOT_FINITE, posinf=NOT_FINITE).clamp(max=NOT_FINITE)
