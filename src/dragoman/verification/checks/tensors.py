"""Level 1: cross keys and values, and teacher-forced logits at every step, within a tolerance.

Below fp32 they are measured and not judged: what a difference means depends on the model.
Trained speech encoders, for instance, write numbers a hundred times larger than all others at a few
positions ("Massive Activations", Sun et al. 2024), mostly of silence, and any rounding moves some
of them to other positions, without an effect on words. `distributions` shows the effect.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dragoman.optimize.compare import NOT_FINITE
from dragoman.runtime.format.manifest import Manifest
from dragoman.runtime.format.records import TensorParity

from ..forced import ForcedBatch
from ..tolerances import TOLERANCES

HEADS_LAST = (0, 2, 1, 3)


class TensorMeters:
    """A meter for each tensor of a bundle that is compared."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._meters: dict[str, DifferenceMeter] = {}

    def add(self, batch: ForcedBatch) -> None:
        encoder = self._manifest.graphs.get("encoder")
        for tensor in encoder.outputs if encoder else ():
            assert tensor.layer is not None
            expected = batch.cross[tensor.layer][0 if tensor.role == "cross_key" else 1].numpy()
            self._meters.setdefault(tensor.name, DifferenceMeter()).add(
                batch.encoded[tensor.name].transpose(HEADS_LAST)[batch.source_mask],
                expected.transpose(HEADS_LAST)[batch.source_mask],
            )
        self._meters.setdefault("logits", DifferenceMeter()).add(
            batch.scored[batch.read_mask], batch.logits[batch.read_mask]
        )

    @property
    def largest_logit(self) -> float:
        """Of the oracle, in absolute value."""
        return self._meters["logits"].scale

    def results(self) -> list[TensorParity]:
        precision = self._manifest.precision
        tolerance = TOLERANCES[precision] if precision == "fp32" else None
        return [meter.result(name, tolerance) for name, meter in self._meters.items()]


class DifferenceMeter:
    """The difference between two tensors [positions, ...], by position, over several batches."""

    def __init__(self) -> None:
        self.relative = self.scale = 0.0
        self.absolute: list[float] = []

    def add(self, found: NDArray[np.floating], expected: NDArray[np.floating]) -> None:
        difference = np.abs(found.astype(np.float64) - expected)
        difference[~np.isfinite(difference)] = NOT_FINITE
        magnitude = np.abs(expected)
        self.scale = max(self.scale, float(magnitude.max()))
        self.absolute += difference.reshape(len(difference), -1).max(axis=1).tolist()
        self.relative = max(self.relative, float((difference / np.maximum(magnitude, 1e-3)).max()))

    def result(self, name: str, tolerance: float | None) -> TensorParity:
        """
        Args:
            tolerance: None: the values need only be finite
        """
        differences = np.asarray(self.absolute) / max(1.0, self.scale)
        difference = float(differences.max())
        finite = max(self.absolute) < NOT_FINITE
        return TensorParity(
            name=name,
            largest_absolute=max(self.absolute),
            largest_relative=self.relative,
            difference=difference,
            tolerance=tolerance,
            passed=finite if tolerance is None else difference <= tolerance,
            positions=len(differences),
            positions_beyond=0
            if tolerance is None
            else int(np.count_nonzero(differences > tolerance)),
        )
