"""Compares products by rounded weights, on the inputs that the model multiplies them with.

Compensated rounding moves single weights by several steps, and keeps the products. So an output's
error on observed inputs may not be much larger than independent rounding would make it, and its
gain must be near 1.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dragoman.onnx_graphs.graph_files import load_graph
from dragoman.optimize.dequantized import QuantizedWeight, quantized_weights
from dragoman.optimize.precision.rounding import parts_of_outputs
from dragoman.reference_model import EncoderModel, ReferenceModel
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.model_spec import ModelSpec
from dragoman.runtime.format.parity import Check

from ..oracle import encoder_pass, encoding_anew, oracle_pass
from ..stored.checkpoint_weights import CheckpointWeights, sources_of
from ..stored.weights import GainLimits, gain_problems
from ..tolerances import Tally
from .probes import Probe, batch_of

Array = NDArray[Any]

MOST_ROWS = 256
"""Rows of inputs of each product, about as many of each probe."""

NUMBERS_AT_ONCE = 2**22
"""Numbers of a weight that are multiplied at once."""

MOST_ERROR = 4
"""The error of an output, relative to that of independent rounding. Right bundles of all families
reach 2.6 in int8 and 2.1 in int4: where a calibration had few inputs, an output may be off in
directions that others have."""
CHANCE = 1e-4
"""The chance that independent rounding exceeds what is allowed in any output, where observed rows
are so alike that errors do not average out and it exceeds `MOST_ERROR`."""

GAINS: Mapping[int, GainLimits] = {8: GainLimits(0.04, 8, 0.002), 4: GainLimits(0.1, 8, 0.018)}
"""By the bits of the weight's integers. Right bundles reach gains of 0.018 and 0.001 from 1 in
int8, and of 0.03 and 0.014 in int4."""


def compare_products(
    bundle: Bundle,
    checkpoint: CheckpointWeights,
    oracle: ReferenceModel,
    spec: ModelSpec,
    probes: Sequence[Probe],
) -> Check | None:
    """Compare the products of a bundle's rounded weights with the checkpoint's."""
    graphs = [load_graph(bundle.graph_path(graph)) for graph in bundle.manifest.model_graphs]
    # Where each number of 8 bits is the nearest, products follow.
    most_bits = 4 if bundle.manifest.calibrated_on == 0 else 8
    weights = [w for graph in graphs for w in quantized_weights(graph) if w.bits <= most_bits]
    rounded = {weight.name: weight.shape[0] for weight in weights}
    if not rounded:
        return None
    with (
        encoding_anew(oracle),  # or the encoder's products would not be observed
        _observed(oracle, rounded, MOST_ROWS // len(probes) + 1) as inputs,
    ):
        for probe in probes:
            source, mask = batch_of([probe], spec)
            if isinstance(oracle, EncoderModel):
                encoder_pass(oracle, source, mask)
            else:
                oracle_pass(oracle, source, mask, np.array([probe.read], np.int64))
    tally = Tally()
    for weight in weights:
        expected = checkpoint.expected(weight.name, weight)
        rows = inputs.pop(weight.name, None)  # both graphs may hold a table
        if expected is None or not rows:
            continue
        tally.compared += expected.shape[1]
        for excess, count, text in _excesses(weight, expected, np.concatenate(rows)):
            tally.add(0, count if excess > 1 else 0, excess, text if excess > 1 else "")
    return tally.check("products", "outputs")


def _excesses(
    weight: QuantizedWeight, expected: Array, rows: Array
) -> Iterator[tuple[float, int, str]]:
    name, sums = weight.name, _sums(weight, expected, rows)
    error = np.sqrt(sums.errors / len(rows))
    independent = np.sqrt(sums.independent)
    share = np.where(np.isfinite(error), error, 1e9) / np.maximum(independent, 1e-30)
    output, allowed = int(share.argmax()), max(MOST_ERROR, _explained(rows, len(share)))
    yield (
        float(share[output]) / allowed,
        int((share > allowed).sum()),
        f"{name}, output {output}: products are {share[output]:.3g} times as far from the "
        f"checkpoint's as rounding explains, allowed {allowed:.3g}",
    )
    # Positions of the same text resemble each other: a quarter of them counts. Independent rounding
    # moves a gain with the products that each input is correlated with.
    moved = np.sqrt(sums.moved / np.maximum(sums.power, 1e-30))
    noise = np.maximum(2 * np.maximum(error, 1e-3 * independent), moved)
    limits = GAINS[weight.bits]
    names = name, "output", 0, "products"
    yield from gain_problems(*names, sums.products, sums.power, sums.errors, noise, limits)


def _explained(rows: Array, outputs: int) -> float:
    """Return the error that independent rounding reaches in one of so many outputs by chance.

    Mean squares of the errors of rows [R, inputs] are chi-squared, with the directions of the rows
    as degrees of freedom (Wilson & Hilferty 1931 for the quantile).
    """
    gram = rows.astype(np.float64) @ rows.T
    directions = np.trace(gram) ** 2 / max(float((gram**2).sum()), 1e-30)
    deviations = np.sqrt(2 * np.log(outputs / CHANCE))
    spread = 2 / (9 * max(1.0, float(directions)))
    return float((1 - spread + deviations * np.sqrt(spread)) ** 1.5)


class _Sums(NamedTuple):
    products: Array
    """Of the checkpoint's products times the rounded weight's."""
    power: Array
    """Of the squares of the rounded weight's products."""
    errors: Array
    """Of the squares of the differences."""
    independent: Array
    """The mean square that errors of independent rounding have."""
    moved: Array
    """The variance that independent rounding gives to `products`."""


def _sums(weight: QuantizedWeight, expected: Array, rows: Array) -> _Sums:
    squares, parts = np.mean(rows**2, axis=0), []
    for part in parts_of_outputs(expected.shape, NUMBERS_AT_ONCE):
        own, right = weight.read(part), expected[:, part]
        exact, error = rows @ right, rows @ (own.values - right)
        found, variance = exact + error, own.step**2 / 12
        moved = ((rows.T @ exact) ** 2 * variance).sum(axis=0)
        sums = ((exact * found).sum(axis=0), (found**2).sum(axis=0), (error**2).sum(axis=0))
        parts.append((*sums, squares @ variance, moved))
    return _Sums(*(np.concatenate(own).astype(np.float64) for own in zip(*parts, strict=True)))


@contextlib.contextmanager
def _observed(
    oracle: ReferenceModel, rounded: Mapping[str, int], most: int
) -> Iterator[dict[str, list[Array]]]:
    parameters = dict(oracle.named_parameters(remove_duplicate=False))
    multiplying: dict[int, nn.Module] = {}
    for module in oracle.modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, torch.Tensor) and not isinstance(module, nn.Embedding):
            multiplying[weight.data_ptr()] = module
    inputs: dict[str, list[Array]] = {name: [] for name in rounded}

    def observe(name: str, _: nn.Module, given: Any) -> None:
        width = rounded[name]
        if given[0].shape[-1] == width:
            rows = given[0].detach().reshape(-1, width)
            inputs[name].append(rows[:: -(-len(rows) // most)].numpy().copy())

    with contextlib.ExitStack() as hooks:
        for name in rounded:
            source = parameters.get(next(iter(sources_of(name))))
            user = None if source is None else multiplying.get(source.data_ptr())
            if user is not None:
                hook = user.register_forward_pre_hook(functools.partial(observe, name))
                hooks.callback(hook.remove)
        yield inputs
