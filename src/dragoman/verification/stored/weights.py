"""Compares weights with the checkpoint's, number by number and without any input.

Weights in fp32 and in 16 bits must be the checkpoint's, rounded. Integers are compared by output
(or, of a table, by row), in rounding steps. Without calibration, each must be the nearest.
Compensation of errors moves single weights by several steps, but hardly changes an output's mean
error, gain or size of the error; a wrong scale, zero point, block or nibble does. The first input
is rounded to the nearest, before there is an error to compensate.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from dragoman.onnx_graphs.graph_files import load_graph
from dragoman.optimize.dequantized import Numbers, QuantizedWeight, quantized_weights
from dragoman.optimize.precision.rounding import parts_of_outputs
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.parity import Check

from .checkpoint_weights import CAST, SCALED, CheckpointWeights, gathered

Array = NDArray[Any]
SCALED_ERROR = 2e-6
"""The error of weights that a pass computed, relative to the largest: a few roundings in fp32."""

NUMBERS_AT_ONCE, IN_CACHE = 2**22, 2**18
"""Numbers of a weight that are compared at once: of enough outputs to tell what is usual; where all
are compared alone, as many as fit into a core's cache."""

NEAREST = 0.501
"""The error of a number that is rounded to the nearest, in steps, with room for float32."""

BLOCK, FEW = 32, 8
"""Inputs whose errors are also looked at together, and the least that say something."""

UNUSUAL, UNUSUAL_BLOCK = 2.5, 4.0
"""How many times as far as the others of its weight one output may be (their median), or a block of
one (their 99th percentile). Where one input is much larger than all others, compensation moves the
weights of these a long way."""

BIAS = 1.2
"""The most that a gain is biased, as a multiple of the share of the power that errors have."""

TINY = 1e-30
"""Outputs without a larger number have no scale of their own."""

LEAST_SCALE = {8: 0.85, 4: 0.55}
"""The least share of a scale that fits the largest number which rounding chooses, by bits."""


@dataclass(frozen=True)
class GainLimits:
    """How far rounding moves the gain of outputs, with which rounded numbers fit best, from 1."""

    gain: float
    """Of one output."""
    deviations: float
    """Of one or all in standard deviations; scales are wrong where both are exceeded."""
    mean_gain: float
    """Of all outputs together."""


@dataclass(frozen=True)
class Limits:
    """How far rounding takes a weight, by the bits of its integers.

    Roundings of random weights for many kinds of inputs stay below, and so do trained models:
    tests/verification/test_weights.py.
    """

    single: float
    """The error of one number, in steps."""
    column: float
    """The root mean square of the errors of an output, in steps."""
    block: float
    """The same of a block of its inputs, relative to the block's own size."""
    moved: float
    """The floor of a block's size when its error is divided by it, as a multiple of the 99th
    percentile of all blocks' errors."""
    offset: float
    """The mean error of an output, in steps."""
    gains: GainLimits
    """Of its outputs."""


LIMITS: Mapping[int, Limits] = {
    8: Limits(24, 2.6, 0.35, 4, 0.6, GainLimits(0.008, 7, 0.003)),
    4: Limits(12, 2.6, 0.75, 0, 0.6, GainLimits(0.06, 8, 0.05)),
}


def compare_weights(bundle: Bundle, weights: CheckpointWeights) -> Check | None:
    """Compare all weights of a bundle's graphs with the checkpoint's."""
    if bundle.manifest.executable.format != "onnx":
        return None
    compared, worst = 0, 0.0
    nearest = bundle.manifest.calibrated_on == 0  # every number was rounded to the nearest
    problems: list[str] = []
    seen: set[str] = set()
    for graph in bundle.manifest.graphs:
        model = load_graph(bundle.graph_path(graph))
        for weight in quantized_weights(model):
            expected = weights.expected(weight.name, weight)
            if expected is None:
                continue
            seen.update(weights.sources(weight.name, weight))
            compared += expected.size
            for excess, problem in rounding_problems(weight, expected, nearest):
                worst = max(worst, excess)
                if excess > 1:
                    problems.append(problem)
        for name, value in model.graph.initializers.items():
            if value.dtype not in _FLOATS or value.const_value is None:
                continue
            own = np.asarray(value.const_value.numpy())
            expected = weights.expected(name, own)
            seen.update(weights.sources(name, own))
            if expected is None:
                seen.update(gathered(own, weights.tensors))
                continue
            compared += expected.size
            problems += _float_problems(name, own, expected)
    problems += _missing(weights, seen)
    problem = problems[0] if problems else ""
    return Check(
        "weights", compared, "weights", len(problems), not problems, worst or None, problem
    )


_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def _missing(weights: CheckpointWeights, seen: set[str]) -> list[str]:
    """List parameters that no graph has; exporters merge equal ones, and drop biases of zeros."""
    present = [weights.tensors[name] for name in weights.parameters if name in seen]
    absent = [name for name in weights.parameters if name not in seen]
    return [
        f"{name}: expected in a graph, found in none"
        for name in absent
        if weights.tensors[name].any()
        and not any(_same(weights.tensors[name], other) for other in present)
    ]


def _same(one: Array, other: Array) -> bool:
    if one.shape != other.shape:
        return False
    one, other = np.atleast_1d(one), np.atleast_1d(other)
    return all(np.array_equal(one[part], other[part]) for part in _rows(one))


def _rows(numbers: Array) -> Iterator[slice]:
    if not numbers.size:
        return iter(())
    rows = max(1, NUMBERS_AT_ONCE * len(numbers) // numbers.size)
    return (slice(first, first + rows) for first in range(0, len(numbers), rows))


def _float_problems(name: str, own: Array, expected: Array) -> list[str]:
    own, expected = np.atleast_1d(own), np.atleast_1d(expected)
    computed = bool(SCALED.fullmatch(CAST.sub("", name)) or name.endswith(".bilinear"))
    allowed = 0.0
    if computed:
        largest = float(_largest(expected, None)) if expected.size else 0.0
        allowed = largest * (SCALED_ERROR + (0 if own.dtype == np.float32 else 2.0**-8))
    beyond, worst, problem = 0, 0.0, ""
    for part in _rows(own):
        wide = own[part].astype(np.float32, copy=False)
        target = expected[part].astype(own.dtype, copy=False).astype(np.float32, copy=False)
        apart = np.abs(wide - target)
        apart[~np.isfinite(apart)] = np.inf
        beyond += int((apart > allowed).sum())
        place = np.unravel_index(int(apart.argmax()), apart.shape)
        if apart[place] > max(worst, allowed):
            worst = float(apart[place])
            row, *others = map(int, place)
            problem = (
                f"{name}{[part.start + row, *others]}: expected {float(target[place]):.7g}, found "
                f"{float(wide[place]):.7g}"
            )
    return [f"{problem}; {beyond} of {own.size} numbers differ"] if beyond else []


def rounding_problems(
    weight: QuantizedWeight, expected: Array, nearest: bool
) -> Iterator[tuple[float, str]]:
    """Measure a rounded weight in multiples of what is allowed, each with a sentence."""
    each = nearest and weight.bits == 8

    def problems(part: slice) -> list[tuple[float, str]]:
        own = weight.read(part)
        order: Literal["C", "F"] = "C" if own.values.flags.c_contiguous else "F"
        right = np.asarray(expected[:, part], order=order)
        few = slice(None) if nearest else slice(1)
        found = [_nearest_problem(weight, own, right, few, part.start)]
        if each:  # a scale that is off by a two hundredth shows in these
            found.append(_scale_problem(weight, own, right, part.start))
        else:
            found += _problems_of_outputs(weight, own, right, part.start)
        return found

    parts = parts_of_outputs(expected.shape, IN_CACHE if each else NUMBERS_AT_ONCE)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for found in pool.map(problems, parts):
            yield from found


def _problems_of_outputs(
    weight: QuantizedWeight, own: Numbers, expected: Array, first: int
) -> Iterator[tuple[float, str]]:
    limits, name = LIMITS[weight.bits], weight.name
    what, largest = "row" if weight.table else "output", 2 ** (weight.bits - 1) - 1
    unit = _rounding_step(own, expected, weight.block, largest)
    # A last block of few inputs takes the errors of all before it, and says little.
    few = len(expected) % weight.block
    inputs = len(expected) - (few if few < FEW else 0)
    exact, found, step = (part[:inputs] for part in (expected / unit, own.values / unit, unit))
    # Scales cut off numbers that hardly matter, in favour of the others.
    reach = largest * np.maximum(own.step[:inputs] / step, LEAST_SCALE[weight.bits])
    exact = np.clip(exact, -reach, reach)
    error = np.where(np.isfinite(found), found - exact, 1e9)
    single = float(np.abs(error).max(initial=0))
    yield (
        single / limits.single,
        f"{name}: a number is {single:.3g} rounding steps from the checkpoint's, allowed "
        f"{limits.single:g}",
    )
    root = np.sqrt(np.mean(error**2, axis=0))
    worst, allowed = int(root.argmax()), max(limits.column, UNUSUAL * float(np.median(root)))
    yield (
        float(root[worst]) / allowed,
        f"{name}, {what} {first + worst}: {root[worst]:.3g} rounding steps from the checkpoint's "
        f"on average, allowed {allowed:.3g}",
    )
    offset = np.abs(error.mean(axis=0))
    # Of few inputs, the mean of errors that are right is large, too.
    allowed = limits.offset + 2.5 / np.sqrt(len(error))
    worst = int(offset.argmax())
    yield (
        float(offset[worst] / allowed),
        f"{name}, {what} {first + worst}: all numbers are {offset[worst]:.3g} rounding steps off, "
        f"allowed {allowed:.3g}: is a zero point wrong?",
    )
    if len(error) >= BLOCK:
        yield _block_problem(name, what, first, exact, found, limits)
    noise = np.maximum(root, 1e-3)
    sums = (exact * found).sum(axis=0), (found**2).sum(axis=0), len(found) * root**2
    names = name, what, first, "numbers"
    gains = gain_problems(*names, *sums, noise, limits.gains, bias=BIAS, least_power=1e-9)
    yield from ((excess, problem) for excess, _, problem in gains)


def _nearest_problem(
    weight: QuantizedWeight, numbers: Numbers, expected: Array, inputs: slice, first: int
) -> tuple[float, str]:
    shared = numbers.step.strides[0] == 0  # by all inputs of an output
    inverse = 1 / np.maximum(numbers.step[:1] if shared else numbers.step, np.float32(1e-30))
    found = numbers.values * inverse
    largest = _largest(found, None)
    found = found[inputs]
    exact = expected[inputs] * (inverse if shared else inverse[inputs])
    error = found - exact
    np.abs(error, out=error)
    beyond = ~(error <= NEAREST)  # also if it is NaN
    own, right, apart = found[beyond], exact[beyond], error[beyond]
    cut_off = (np.abs(own) >= largest - NEAREST) & (own * right > own**2)
    error[beyond] = np.where(cut_off, 0, np.where(np.isfinite(own), apart, 1e9))
    if error.max() <= NEAREST:
        return float(error.max()) / NEAREST, ""
    row, column = np.unravel_index(int(error.argmax()), error.shape)
    what = "row" if weight.table else "output"
    return (
        float(error[row, column]) / NEAREST,
        f"{weight.name}, {what} {first + int(column)}, input {row}: a number is "
        f"{error[row, column]:.3g} rounding steps from the checkpoint's, allowed 0.5: is a scale "
        "wrong?",
    )


def _scale_problem(
    weight: QuantizedWeight, own: Numbers, expected: Array, first: int
) -> tuple[float, str]:
    largest, step = _largest(expected, 0), np.maximum(own.step[0], np.float32(1e-30))
    steps, integer = largest / step, (_largest(own.values, 0) / step).max(initial=0)
    share = np.maximum(integer / (steps + NEAREST), LEAST_SCALE[8] * steps / (integer + NEAREST))
    share[largest <= TINY] = 0
    worst = int(share.argmax())
    what = "row" if weight.table else "output"
    return (
        float(share[worst]),
        f"{weight.name}, {what} {first + worst}: its largest number is {steps[worst]:.4g} rounding "
        f"steps, expected {integer:.4g} or somewhat more: is a scale wrong?",
    )


def _largest(numbers: Array, axis: int | None) -> Array:
    largest: Array = np.maximum(numbers.max(axis=axis), -numbers.min(axis=axis))
    return largest


def _rounding_step(own: Numbers, expected: Array, block: int, largest: int) -> Array:
    """Compute the rounding step of each number, [inputs, outputs].

    It is at least that of the checkpoint's own numbers; compensation may make scales smaller.
    """
    inputs, outputs = expected.shape
    padded = np.pad(np.abs(expected), ((0, -inputs % block), (0, 0)))
    blocks = padded.reshape(-1, block, outputs).max(axis=1) / largest
    natural = np.repeat(blocks, block, axis=0)[:inputs]
    step: Array = np.maximum(np.maximum(own.step, natural), np.float32(1e-30))
    return step


def _block_problem(
    name: str, what: str, first: int, exact: Array, found: Array, limits: Limits
) -> tuple[float, str]:
    whole = len(exact) // BLOCK * BLOCK
    parts = (exact, found - exact, found)
    blocks = [part[:whole].reshape(-1, BLOCK, part.shape[1]) for part in parts]
    size, apart, left = (np.sqrt(np.mean(block**2, axis=1)) for block in blocks)
    # Compensation may move all numbers of a block that is smaller than what it moves others by.
    floor = max(1.5, limits.moved * _usual(np.nan_to_num(apart, nan=0.0)))
    share = np.nan_to_num(apart / np.maximum(size, floor), nan=1e9)
    share[(left == 0) & (size > 1.5)] = 1e9  # nothing is left of it
    block, output = np.unravel_index(int(share.argmax()), share.shape)
    allowed = max(limits.block, UNUSUAL_BLOCK * _usual(share))
    return (
        float(share[block, output]) / allowed,
        f"{name}, {what} {first + int(output)}, inputs from {BLOCK * block}: the numbers are "
        f"{share[block, output]:.2g} of their size from the checkpoint's, allowed {allowed:.2g}",
    )


def _usual(errors: Array) -> float:
    """Return the 99th percentile of errors without the largest one; 0 if there are no others."""
    others = np.sort(errors, axis=None)[:-1]
    return float(np.quantile(others, 0.99)) if others.size else 0.0


def gain_problems(
    name: str,
    what: str,
    first: int,
    numbers: str,
    products: Array,
    power: Array,
    errors: Array,
    noise: Array,
    limits: GainLimits,
    *,
    bias: float = 1.0,
    least_power: float = 1e-30,
) -> Iterator[tuple[float, int, str]]:
    """Regress the checkpoint's numbers on the rounded ones, output by output and all together.

    A gain has no bias where the scale is the best one, since errors of rounding do not depend on
    what is rounded. Compensated errors bias it by their share of the power.

    Args:
        name, what, numbers: the names of the weight, of an output and of what is compared
        first: the number of the first output
        products, power, errors: sums for each output: of the checkpoint's numbers times the rounded
            ones, of the squares of the rounded ones, and of the squares of the differences
        noise: the standard deviation of the error of each output, for its gain
        bias: the most that a gain is biased, in multiples of the errors' share of the power
        least_power: of an output

    Yields:
        the gain of the worst output and of all, as a multiple of what is allowed; the outputs
        beyond that; a sentence
    """
    power = np.maximum(power, least_power)
    gains, shares = products / power, errors / power
    deviations = np.abs(gains - 1) * np.sqrt(power) / noise
    excess = np.minimum(
        np.abs(gains - 1) / np.maximum(limits.gain, bias * shares), deviations / limits.deviations
    )
    worst = int(excess.argmax())
    problem = f"the checkpoint's {numbers} are {gains[worst]:.4g} times as large: is a scale wrong?"
    beyond = int((excess > 1).sum())
    yield float(excess[worst]), beyond, f"{name}, {what} {first + worst}: {problem}"
    gain = float(products.sum() / power.sum())
    share = float(errors.sum() / power.sum())
    deviation = float(np.sqrt((noise**2 * power).sum()) / power.sum())
    allowed = max(limits.mean_gain, bias * share, limits.deviations * deviation)
    problem = f"the checkpoint's {numbers} are {gain:.4g} times as large: are scales wrong?"
    yield abs(gain - 1) / allowed, len(gains), f"{name}: {problem}"
