"""Level 1: cross keys and values, and teacher-forced logits at every step, within a tolerance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.optimize.compare import NOT_FINITE
from dragoman.reference_model import NoMemory, Transformer
from dragoman.runtime import Model
from dragoman.runtime.decoding.batching import Encodable, as_batch, pad
from dragoman.runtime.format.records import TensorParity

from .oracle import source_batches
from .tolerances import TOLERANCES, excused_share

COMPARED_SOURCES = 64
"""Sources compared tensor by tensor, spread evenly over all."""


def compare_tensors(
    model: Model, oracle: Transformer, sources: Sequence[Encodable], outputs: list[list[int]]
) -> tuple[list[TensorParity], float]:
    """
    Args:
        outputs: of the oracle, which the decoders are forced to follow

    Returns:
        the parity of each tensor, and the largest absolute logit of the oracle
    """
    count = min(COMPARED_SOURCES, len(sources))
    chosen = np.linspace(0, len(sources) - 1, count).astype(int).tolist()
    meters: dict[str, DifferenceMeter] = {}
    for batch in source_batches([sources[i] for i in chosen]):
        rows = [chosen[i] for i in batch]
        _measure_batch(
            model, oracle, [sources[i] for i in rows], [outputs[i] for i in rows], meters
        )
    tolerance = TOLERANCES[model.manifest.precision]
    results = [
        meter.result(name, tolerance, excused_share(model.manifest, name))
        for name, meter in meters.items()
    ]
    return results, meters["logits"].scale


def _measure_batch(
    model: Model,
    oracle: Transformer,
    sources: list[Encodable],
    outputs: list[list[int]],
    meters: dict[str, DifferenceMeter],
) -> None:
    spec = model.manifest.model
    source, source_mask = as_batch(sources, spec)
    prompt = [oracle.config.start_token_id, *oracle.generation.prompt]
    forced, target_mask = pad([[*prompt, *output[:-1]] for output in outputs], spec.pad_token_id)
    with torch.inference_mode():
        mask = torch.from_numpy(source_mask)
        cross = oracle.encode(torch.from_numpy(source), mask)
        start = torch.zeros(len(sources), dtype=torch.long)
        logits = oracle.decode(torch.from_numpy(forced), start, mask, cross, NoMemory())
    encoded = model.backend.encode(source, source_mask)
    for tensor in model.manifest.graphs["encoder"].outputs:
        assert tensor.layer is not None
        expected = cross[tensor.layer][0 if tensor.role == "cross_key" else 1].numpy()
        heads_last = (0, 2, 1, 3)
        meters.setdefault(tensor.name, DifferenceMeter()).add(
            encoded[tensor.name].transpose(heads_last)[source_mask],
            expected.transpose(heads_last)[source_mask],
        )
    scored = model.backend.score(source, source_mask, forced)
    meters.setdefault("logits", DifferenceMeter()).add(
        scored[target_mask], logits.numpy()[target_mask]
    )


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

    def result(self, name: str, tolerance: float, excused: float = 0.0) -> TensorParity:
        """
        Args:
            excused: the share of positions that may exceed the tolerance, if they are finite
        """
        differences = np.sort(self.absolute)[::-1] / max(1.0, self.scale)
        beyond = int(np.count_nonzero(differences > tolerance))
        finite = max(self.absolute) < NOT_FINITE
        left_out = min(beyond, int(excused * len(differences))) if finite else 0
        difference = float(differences[left_out])
        return TensorParity(
            name=name,
            largest_absolute=max(self.absolute),
            largest_relative=self.relative,
            difference=difference,
            tolerance=tolerance,
            passed=difference <= tolerance,
            positions=len(differences),
            positions_beyond=beyond,
        )
