from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from dragoman.optimize.precision import weights
from dragoman.optimize.precision.calibration import Calibration, InputStatistics
from dragoman.optimize.precision.rounding import IntegerWeight, _inverse_factor, round_weight
from dragoman.optimize.precision.weights import OneForm, _error_of_product, round_for

RNG = np.random.default_rng(0)


def weight(inputs: int, outputs: int) -> np.ndarray:
    return RNG.standard_normal((inputs, outputs)).astype(np.float32)


def test_a_block_of_four_bits_matches_hand_computed_values() -> None:
    exact = np.array([[7.0, -3.5], [-1.0, 0.5], [0.0, 3.5], [3.0, -0.5]], np.float32)
    rounded = round_weight(exact, bits=4, block=2)
    assert rounded.integers.tolist() == [[7, -7], [-1, 1], [0, 7], [7, -1]]
    np.testing.assert_allclose(rounded.scales, [[1.0, 0.5], [3 / 7, 0.5]], rtol=1e-6)
    np.testing.assert_allclose(rounded.dequantized(), exact, atol=1e-6)


@pytest.mark.parametrize("bits, limit", [(4, 7), (7, 63), (8, 127)])
@pytest.mark.parametrize("inputs, block", [(1, None), (37, None), (37, 32), (64, 16)])
def test_integers_stay_in_range_and_scales_have_their_shape(
    bits: int, limit: int, inputs: int, block: int | None
) -> None:
    rounded = round_weight(weight(inputs, 5), bits=bits, block=block)
    assert rounded.integers.shape == (inputs, 5)
    assert rounded.scales.shape == (1 if block is None else -(-inputs // block), 5)
    assert np.abs(rounded.integers).max() <= limit


def test_an_output_whose_weights_are_all_zero_stays_zero() -> None:
    exact = weight(8, 3)
    exact[:, 1] = 0
    rounded = round_weight(exact, bits=8)
    assert not rounded.dequantized()[:, 1].any()
    assert np.isfinite(rounded.scales).all()


@pytest.mark.parametrize("bits, block", [(4, 16), (4, None)])
def test_searched_scales_beat_the_scale_of_the_largest_weight(bits: int, block: int | None) -> None:
    exact = RNG.standard_t(3, (64, 40)).astype(np.float32)
    limit, size = 2 ** (bits - 1) - 1, block or 64
    blocks = exact.reshape(-1, size, 40)
    plain = np.abs(blocks).max(1, keepdims=True) / limit
    nearest = (np.rint(blocks / plain) * plain).reshape(64, 40)
    searched = round_weight(exact, bits=bits, block=block).dequantized()
    assert np.square(searched - exact).sum() < np.square(nearest - exact).sum()


@pytest.mark.parametrize("bits, block", [(4, 16), (4, None), (7, None)])
def test_compensation_reduces_the_error_of_the_product(bits: int, block: int | None) -> None:
    mixing = RNG.standard_normal((48, 48))
    x = (RNG.standard_normal((400, 48)) @ mixing).astype(np.float32)
    other = (RNG.standard_normal((400, 48)) @ mixing).astype(np.float32)
    exact = weight(48, 20)

    def error(rounded: IntegerWeight) -> float:
        return float(np.linalg.norm(other @ (rounded.dequantized() - exact)))

    plain = round_weight(exact, bits=bits, block=block)
    compensated = round_weight(exact, bits=bits, block=block, moments=x.T @ x)
    assert error(compensated) < 0.9 * error(plain)


@pytest.mark.parametrize("different, diverse", [(1, False), (7, False), (8, True), (300, True)])
def test_errors_are_compensated_on_different_inputs_only(different: int, diverse: bool) -> None:
    """Repeated rows, which kernels may round otherwise, say nothing of other inputs."""
    noise = 1 + 1e-7 * weight(50 * different, 1)
    rows = (np.tile(weight(different, 24), (50, 1)) * noise).astype(np.float32)
    moments = rows.T @ rows
    usable = InputStatistics(rows, True, False, moments).usable_moments
    assert (usable is not None) == diverse
    assert InputStatistics(rows[:0], True, False, moments).usable_moments is None
    assert InputStatistics(rows, False, False, moments).usable_moments is None


def test_inputs_that_are_always_zero_are_harmless() -> None:
    x = RNG.standard_normal((50, 12)).astype(np.float32)
    x[:, 3] = 0
    rounded = round_weight(weight(12, 4), bits=8, moments=x.T @ x)
    assert np.isfinite(rounded.dequantized()).all()


@pytest.mark.parametrize("bits", [7, 8])
def test_an_input_that_calibration_hardly_reaches_keeps_its_largest_weights(bits: int) -> None:
    """As a unit behind a ReLU: other texts may reach it, so that no weight is off by many steps."""
    x = np.maximum(RNG.standard_normal((400, 192)), 0).astype(np.float32)
    x[:, 7] *= 1e-3
    exact = weight(192, 6)
    exact[7] = 1.3 * np.abs(exact).max(0)
    rounded = round_weight(exact, bits=bits, moments=x.T @ x)
    assert (np.abs(rounded.dequantized() - exact)[7] <= 3 * rounded.scales[0]).all()


@pytest.mark.parametrize("inputs", [1, 31, 33, 100])
def test_the_factor_of_the_inverse(inputs: int) -> None:
    x = RNG.standard_normal((60, inputs)).astype(np.float32)
    moments = x.T @ x
    factor = _inverse_factor(moments)
    damped = moments + 0.01 * np.diag(moments).mean() * np.eye(inputs)
    assert not np.tril(factor, -1).any()
    np.testing.assert_allclose(factor.T @ factor @ damped, np.eye(inputs), atol=1e-3)


@pytest.mark.parametrize("bits, block", [(8, None), (4, 16)])
def test_outputs_are_rounded_independently(
    bits: int, block: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many outputs are rounded part by part, in several threads."""
    exact = weight(40, 50)
    whole = round_weight(exact, bits=bits, block=block)
    monkeypatch.setattr("dragoman.optimize.precision.rounding.NUMBERS_AT_ONCE", 40 * 7)
    parts = round_weight(exact, bits=bits, block=block)
    np.testing.assert_array_equal(parts.integers, whole.integers)
    np.testing.assert_array_equal(parts.scales, whole.scales)


def test_the_original_weight_is_not_modified() -> None:
    exact = weight(9, 3)
    copy = exact.copy()
    round_weight(exact, bits=4, block=4, moments=np.eye(9, dtype=np.float32))
    np.testing.assert_array_equal(exact, copy)


@pytest.mark.parametrize("inputs, block", [(40, 32), (37, 32), (5, 2)])
def test_the_last_block_may_be_short(inputs: int, block: int) -> None:
    exact = weight(inputs, 3) * np.linspace(0.1, 10, inputs, dtype=np.float32)[:, None]
    rounded = round_weight(exact, bits=8, block=block)
    assert rounded.scales.shape == (-(-inputs // block), 3)
    # In 8 bits the error is at most half a scale; each scale belongs to its own block.
    apart = np.abs(rounded.dequantized() - exact)
    for start in range(0, inputs, block):
        rows = exact[start : start + block]
        assert (apart[start : start + block] <= np.abs(rows).max(0) / 127).all()


def test_scales_are_rounded_to_their_type() -> None:
    """With tiny weights, scales are subnormal in fp16; weights are rounded with these scales."""
    exact = weight(12, 5) * np.float32(1e-5)
    exact[:, 2] = 0
    rounded = round_weight(exact, bits=8, scale_type=np.float16)
    assert (rounded.scales.astype(np.float16).astype(np.float32) == rounded.scales).all()
    assert (rounded.scales > 0).all()
    assert np.abs(rounded.dequantized() - exact).max() <= rounded.scales.max()


def error_of(read: np.ndarray, rows: np.ndarray) -> float:
    """Of a product by the identity, which reads other rows than it is given."""
    identity = np.eye(rows.shape[1], dtype=np.float32)
    ones = np.ones((1, len(identity)), np.float32)
    rounded = IntegerWeight(identity.astype(np.int8), ones, len(identity))
    return _error_of_product(rounded, identity, rows, read)


def test_the_error_of_a_large_product_is_that_of_some_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are none of a period: here, each eighth row has no error."""
    exact = weight(24, 40)
    exact[0] = 0
    rows = RNG.standard_normal((512, 24)).astype(np.float32)
    rows[::8] = np.eye(24, dtype=np.float32)[0]
    x, scheme = ir.Value(name="x"), OneForm("int4", 4, None, 1.0)
    calibration = Calibration({"x": InputStatistics(rows, finite=True, nonnegative=False)})
    whole = round_for(exact, x, scheme, calibration).error
    monkeypatch.setattr(weights, "MOST_MULTIPLICATIONS", 64 * exact.size)
    some = round_for(exact, x, scheme, calibration).error
    assert some != whole
    assert some == pytest.approx(whole, rel=0.2)


def test_the_error_of_a_product_is_averaged_over_rows() -> None:
    """Errors of 0.1, 0.5 and 0 in three rows, the first a thousand times as large as the others."""
    exact = np.array([[3000.0, 4000.0], [3.0, 4.0], [4.0, 3.0]], np.float32)
    found = exact + np.array([[500.0, 0.0], [0.0, 2.5], [0.0, 0.0]], np.float32)
    assert error_of(found, exact) == pytest.approx(np.sqrt((0.1**2 + 0.5**2) / 3))
    assert error_of(exact, exact) == 0


def test_the_norm_of_a_zero_row_counts_as_a_tenth_of_the_median() -> None:
    exact = np.array([[3.0, 4.0], [0.0, 0.0], [4.0, 3.0]], np.float32)
    found = exact + np.array([[0.0, 0.0], [0.5, 0.0], [0.0, 0.0]], np.float32)
    assert error_of(found, exact) == pytest.approx(np.sqrt(1 / 3))
