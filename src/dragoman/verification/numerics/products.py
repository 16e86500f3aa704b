"""Products by rounded weights, on what the model multiplies them with.

Compensated rounding moves single weights by several steps in directions that inputs do not have,
and keeps what products give. So each output of a product is compared on observed inputs: its error
may not be much larger than independent rounding of its weights would make it, and its gain, which
rounding leaves near 1, tells scales that are wrong.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from torch import nn

from dragoman.optimize.dequantized import QuantizedWeight, quantized_weights
from dragoman.reference_model import EncoderModel, ReferenceModel
from dragoman.runtime.decoding.batching import as_batch
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.model_spec import ModelSpec
from dragoman.runtime.format.records import Check

from ..forced import oracle_pass
from ..stored.checkpoint_weights import CheckpointWeights, sources_of
from .probes import Probe

Array = NDArray[Any]

MOST_ROWS = 1024
"""Rows of inputs of each product."""


@dataclass(frozen=True)
class Limits:
    """How far products may be from the checkpoint's, by the bits of the weight's integers.

    Attributes:
        error: of an output, relative to that of independent rounding
        gain: how far the gain of an output is from 1
        deviations: and in its standard deviations: both are exceeded where a scale is wrong
        mean_gain: how far the gain of all outputs together is from 1
    """

    error: float
    gain: float
    deviations: float
    mean_gain: float


LIMITS: Mapping[int, Limits] = {8: Limits(4, 0.04, 8, 0.002), 4: Limits(4, 0.1, 8, 0.018)}
"""Right bundles of all families reach 2.6, 0.018 and 0.001 in int8, 2.1, 0.03 and 0.014 in int4:
where a calibration had few inputs, an output may be off in directions that others have."""


def compare_products(
    bundle: Bundle, oracle: ReferenceModel, spec: ModelSpec, probes: Sequence[Probe]
) -> Check | None:
    """Compare the products of a bundle's rounded weights with the checkpoint's.

    Args:
        probes: sources and targets that the oracle reads

    Returns:
        None if no weight is rounded to integers
    """
    checkpoint, rounded = CheckpointWeights.of(oracle), dict[str, QuantizedWeight]()
    for graph in bundle.manifest.model_graphs:
        for weight in quantized_weights(ir.load(bundle.graph_path(graph))):
            rounded[weight.name] = weight
    if not rounded:
        return None
    with _observed(oracle, rounded) as inputs:
        for probe in probes:
            _read(oracle, spec, probe)
    compared, differing, worst, problem = 0, 0, 0.0, ""
    for name, weight in rounded.items():
        expected = checkpoint.expected(name, weight.numbers)
        if expected is None or not inputs.get(name):
            continue
        rows = np.concatenate(inputs[name])[:MOST_ROWS].astype(np.float64)
        compared += expected.shape[1]
        for excess, count, text in _excesses(weight, expected, rows):
            worst = max(worst, excess)
            if excess > 1:
                differing += count
                problem = problem or text
    return Check("products", compared, "outputs", differing, not problem, worst, problem)


def _excesses(
    weight: QuantizedWeight, expected: Array, rows: Array
) -> Iterator[tuple[float, int, str]]:
    """Each measure as a multiple of what is allowed, the outputs beyond it, and a sentence."""
    limits, name = LIMITS[weight.bits], weight.name
    exact, found = rows @ expected.astype(np.float64), rows @ weight.numbers.astype(np.float64)
    error = np.sqrt(np.mean((found - exact) ** 2, axis=0))
    independent = np.sqrt(np.mean(rows**2, axis=0) @ (weight.step.astype(np.float64) ** 2 / 12))
    share = np.where(np.isfinite(error), error, 1e9) / np.maximum(independent, 1e-30)
    output = int(share.argmax())
    yield (
        float(share[output]) / limits.error,
        int((share > limits.error).sum()),
        f"{name}, output {output}: products are {share[output]:.3g} times as far from the "
        f"checkpoint's as rounding explains, allowed {limits.error:g}",
    )
    power = np.maximum((found**2).sum(axis=0), 1e-30)
    gains = (exact * found).sum(axis=0) / power
    # Positions of the same text resemble each other: a quarter of them counts.
    noise = np.maximum(error, 1e-3 * independent) * 2
    deviations = np.abs(gains - 1) * np.sqrt(power) / noise
    bias = error**2 * len(rows) / power  # compensated errors are not independent
    excess = np.minimum(
        np.abs(gains - 1) / np.maximum(limits.gain, bias), deviations / limits.deviations
    )
    output = int(excess.argmax())
    yield (
        float(excess[output]),
        int((excess > 1).sum()),
        f"{name}, output {output}: the checkpoint's products are {gains[output]:.4g} times as "
        "large: is a scale wrong?",
    )
    gain = float((exact * found).sum() / power.sum())
    whole = float((error**2).sum()) * len(rows) / float(power.sum())
    yield (
        abs(gain - 1) / max(limits.mean_gain, whole),
        len(gains),
        f"{name}: the checkpoint's products are {gain:.4g} times as large: are scales wrong?",
    )


@contextlib.contextmanager
def _observed(
    oracle: ReferenceModel, rounded: Mapping[str, QuantizedWeight]
) -> Iterator[dict[str, list[Array]]]:
    """What each weight is multiplied with while the oracle runs, rows [R, inputs] by name."""
    parameters = dict(oracle.named_parameters(remove_duplicate=False))
    multiplying: dict[int, nn.Module] = {}
    for module in oracle.modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, torch.Tensor) and not isinstance(module, nn.Embedding):
            multiplying[weight.data_ptr()] = module
    inputs: dict[str, list[Array]] = {name: [] for name in rounded}
    handles = []
    for name, weight in rounded.items():
        source = parameters.get(next(iter(sources_of(name))))
        user = None if source is None else multiplying.get(source.data_ptr())
        if user is None:
            continue
        kept, width = inputs[name], len(weight.numbers)

        def hook(_: nn.Module, given: Any, kept: list[Array] = kept, width: int = width) -> None:
            if given[0].shape[-1] == width:
                kept.append(given[0].detach().reshape(-1, width).numpy().copy())

        handles.append(user.register_forward_pre_hook(hook))
    try:
        yield inputs
    finally:
        for handle in handles:
            handle.remove()


def _read(oracle: ReferenceModel, spec: ModelSpec, probe: Probe) -> None:
    """Run the oracle on a probe, alone, so that nothing is padding."""
    source, mask = as_batch([probe.source if spec.has_encoder else []], spec)
    if isinstance(oracle, EncoderModel):
        with torch.inference_mode():
            oracle(torch.from_numpy(source), torch.from_numpy(mask), None)
        return
    oracle_pass(oracle, source, mask, np.array([probe.read], np.int64))
