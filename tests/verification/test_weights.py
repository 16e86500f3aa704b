"""Weights against the checkpoint's: right roundings pass, whatever they were rounded for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman.optimize.dequantized import Numbers, QuantizedWeight
from dragoman.optimize.precision.rounding import round_weight
from dragoman.verification.stored.checkpoint_weights import CheckpointWeights
from dragoman.verification.stored.weights import rounding_problems

Float = NDArray[np.float32]
BLOCKS = {8: None, 4: 32}


def rounded(weight: Float, bits: int, moments: Float | None) -> QuantizedWeight:
    """Round as int8 and int4 do."""
    found = round_weight(weight, bits=bits, block=BLOCKS[bits], moments=moments)
    step = np.repeat(found.scales, found.block, axis=0)[: len(weight)]
    step = np.broadcast_to(step, weight.shape)
    return of_numbers(found.dequantized(), step, bits, found.block)


def of_numbers(numbers: Float, step: Float, bits: int, block: int) -> QuantizedWeight:
    inputs, outputs = numbers.shape
    return QuantizedWeight(
        *("w", (inputs, outputs), bits, block, False),
        lambda part: Numbers(numbers[:, part], step[:, part]),
    )


def changed(right: QuantizedWeight, fault: Callable[[Float, Float], None]) -> QuantizedWeight:
    numbers, step = right.read(slice(None))
    numbers = numbers.copy()
    fault(numbers, step)
    return of_numbers(numbers, step, right.bits, right.block)


def worst(weight: QuantizedWeight, expected: Float, *, nearest: bool = False) -> tuple[float, str]:
    return max(rounding_problems(weight, expected, nearest))


def inputs_of(kind: str, rows: int, inputs: int, generator: np.random.Generator) -> Float:
    """Rows [R, K] that depend on fewer numbers than they have."""
    hidden = generator.standard_normal((rows, max(1, inputs // 4)))
    mixed = hidden @ generator.standard_normal((hidden.shape[1], inputs))
    x = mixed / np.sqrt(hidden.shape[1]) + 0.1 * generator.standard_normal(mixed.shape)
    if kind == "with a mean":
        x += 2 * generator.standard_normal(inputs)
    if kind == "after ReLU, some dead":
        x = np.maximum(x - 1, 0)
        x[:, generator.random(inputs) < 0.1] = 0
    if kind == "with a huge one":
        x[:, generator.integers(inputs)] *= 50
    found: Float = x.astype(np.float32)
    return found


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("inputs", [8, 21, 33, 64, 160])
@pytest.mark.parametrize(
    "kind", ["plain", "with a mean", "after ReLU, some dead", "with a huge one"]
)
def test_right_roundings_pass(bits: int, inputs: int, kind: str) -> None:
    generator = np.random.default_rng(inputs)
    for rows, heavy in ((20, False), (400, True)):
        weight = generator.standard_normal((inputs, 64)).astype(np.float32)
        if heavy:  # weights and outputs of different sizes
            weight *= np.exp(0.7 * generator.standard_normal((inputs, 1))).astype(np.float32)
            weight *= np.exp(0.7 * generator.standard_normal((1, 64))).astype(np.float32)
        x = inputs_of(kind, rows, inputs, generator)
        for moments in (None, x.T @ x):
            found = rounded(weight, bits, moments)
            excess, problem = worst(found, weight, nearest=moments is None)
            assert excess <= 1, problem


def test_numbers_far_below_the_largest_of_their_output_pass() -> None:
    """Compensation of a huge input moves numbers of about a step by more than a step."""
    generator = np.random.default_rng(8)
    weight = generator.standard_normal((512, 32)).astype(np.float32)
    weight[70, 5] = 150
    weight[128:320, 5] *= 0.15
    x = inputs_of("with a huge one", 400, 512, generator)
    x[:, 128:160] *= 0.3
    right = rounded(weight, 8, x.T @ x)
    excess, problem = worst(right, weight)
    assert excess <= 1, problem
    numbers, step = right.read(slice(None))
    assert np.abs(numbers - weight)[352:384, 5].max() > step[0, 5] > 0.5 * weight[352:384, 5].std()
    for first, output in ((64, 5), (352, 6)):

        def zeroed(numbers: Float, step: Float, first: int = first, output: int = output) -> None:
            numbers[first : first + 32, output] = 0

        assert worst(changed(right, zeroed), weight)[0] > 1


def _scale(numbers: Float, step: Float) -> None:
    numbers[:, 7] *= 1.02


def _all_scales(numbers: Float, step: Float) -> None:
    numbers *= 1.1


def _zero_point(numbers: Float, step: Float) -> None:
    numbers[:, 3] += step[:, 3]


def _zeroed_block(numbers: Float, step: Float) -> None:
    numbers[32:96, 5] = 0


def _nibbles(numbers: Float, step: Float) -> None:
    pairs = numbers.reshape(-1, 2, numbers.shape[1])
    pairs[:] = pairs[:, ::-1].copy()


def _swapped_outputs(numbers: Float, step: Float) -> None:
    numbers[:, [1, 2]] = numbers[:, [2, 1]]


def _sign(numbers: Float, step: Float) -> None:
    numbers[:, 9] *= -1


def _not_finite(numbers: Float, step: Float) -> None:
    numbers[4, 4] = np.nan


@pytest.mark.parametrize(
    ("fault", "bits"),
    [
        (_scale, 8),
        *((fault, bits) for fault in (_all_scales, _zero_point, _zeroed_block) for bits in (8, 4)),
        *((fault, bits) for fault in (_nibbles, _swapped_outputs, _sign) for bits in (8, 4)),
        *((_not_finite, bits) for bits in (8, 4)),
    ],
)
def test_faults_do_not(fault: Callable[[Float, Float], None], bits: int) -> None:
    generator = np.random.default_rng(1)
    weight = generator.standard_normal((128, 24)).astype(np.float32)
    x = inputs_of("plain", 400, 128, generator)
    right = rounded(weight, bits, x.T @ x)
    excess, problem = worst(changed(right, fault), weight)
    assert excess > 1 and problem.startswith("w")


def test_the_last_outputs_of_a_wide_weight_are_compared_with_many() -> None:
    """They would be their own measure of what is usual."""
    weight = np.random.default_rng(1).standard_normal((768, 344)).astype(np.float32)

    def fault(numbers: Float, step: Float) -> None:
        numbers[32:96, 342] = 0

    for nearest in (True, False):
        assert worst(changed(rounded(weight, 4, None), fault), weight, nearest=nearest)[0] > 1


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("steps", [1, -1])
def test_without_calibration_every_number_is_the_nearest(bits: int, steps: int) -> None:
    weight = np.random.default_rng(1).standard_normal((70, 24)).astype(np.float32)
    right = rounded(weight, bits, None)

    def fault(numbers: Float, step: Float) -> None:
        numbers[41, 17] += steps * step[41, 17]

    wrong = changed(right, fault)
    assert worst(wrong, weight)[0] <= 1
    excess, problem = worst(wrong, weight, nearest=True)
    assert excess > 1 and "output 17, input 41" in problem


def test_what_passes_make_of_weights_is_known_by_name() -> None:
    generator = np.random.default_rng(0)

    def random(*shape: int) -> Float:
        return generator.standard_normal(shape).astype(np.float32)

    tensors = {"a.query.weight": random(4, 3), "a.key.weight": random(4, 3)}
    tensors |= {"a.key.bias": random(4), "table": random(5, 3), "a.query.bias": random(4)}
    weights = CheckpointWeights(tensors, score_scale=0.25, constants=(math.sqrt(3),))

    def expected(name: str, own: NDArray[Any]) -> NDArray[Any]:
        found = weights.expected(name, own)
        assert found is not None
        return found

    query, key = tensors["a.query.weight"], tensors["a.key.weight"]
    packed = expected("a.query.weight+a.key.weight.packed", np.empty((3, 8)))
    np.testing.assert_array_equal(packed, np.concatenate([query.T, key.T], axis=1))
    bias = expected("a.query.weight+a.key.weight.packed_bias", np.empty(8))
    np.testing.assert_array_equal(
        bias, np.concatenate([tensors["a.query.bias"], tensors["a.key.bias"]])
    )
    scaled = expected("a.query.weight.scaled", 0.25 * query.T)
    np.testing.assert_allclose(scaled, 0.25 * query.T, rtol=1e-6)
    other = expected("a.query.weight.scaled", 0.5 * query.T)
    np.testing.assert_allclose(other, 0.5 * query.T, rtol=1e-6)
    np.testing.assert_array_equal(expected("table", tensors["table"]), tensors["table"])
    # A square one, whose first outputs are near to those of its transposition once it is scaled.
    square = random(70, 70)
    square[:64] *= 20
    weights.tensors["b.query.weight"] = square  # type: ignore[index]
    scaled = expected("b.query.weight.scaled", 0.125 * square.T)
    np.testing.assert_allclose(scaled, 0.125 * square.T, rtol=1e-6)
    constant = expected("val_9", np.array(math.sqrt(3), np.float16))
    np.testing.assert_allclose(constant, math.sqrt(3), rtol=1e-7)
    gathered = tensors["table"][[4, 0, 1, 1, 3, 2]].astype(np.float16)
    np.testing.assert_array_equal(
        expected("embedding", gathered), tensors["table"][[4, 0, 1, 1, 3, 2]]
    )
    assert weights.expected("unknown", random(2, 2)) is None
