"""Activations of int8 products, compared with cases computed by hand and the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from dragoman.optimize import running
from dragoman.optimize.precision.calibration import InputStatistics, ValueRange
from dragoman.optimize.precision.int8 import (
    Activations,
    FixedScale,
    Int8,
    Int8Form,
    RowScales,
    choose,
)
from dragoman.optimize.precision.rounding import round_weight
from dragoman.optimize.running import run
from dragoman.runtime.backends.onnxruntime import cpu

Array = NDArray[np.float32]
RANDOM = np.random.default_rng(3)


def rows(count: int = 50, width: int = 24) -> Array:
    return RANDOM.standard_normal((count, width)).astype(np.float32)


def known(observed: Array, *, random: bool = False, nonnegative: bool = False) -> InputStatistics:
    within = None if random else ValueRange(min(0, observed.min()), max(0, observed.max()))
    finite = bool(np.isfinite(observed).all())
    return InputStatistics(observed, finite, nonnegative, observed.T @ observed, within)


def test_a_row_has_127_steps_on_either_side_of_zero() -> None:
    found = RowScales().round(np.array([[1.27, -0.634, 0.004], [0, 0, 0], [-2, 2, 1]], np.float32))
    expected = np.array([[1.27, -0.63, 0.0], [0, 0, 0], [-2, 2, 64 / 127 * 2]])
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_numbers_that_are_never_negative_have_255_steps() -> None:
    found = RowScales(nonnegative=True).round(np.array([[2.55, 1.234, 0.004]], np.float32))
    np.testing.assert_allclose(found, [[2.55, 1.23, 0.0]], atol=1e-6)


def test_a_fixed_scale_spreads_256_steps_over_the_range_and_cuts_off_what_exceeds_it() -> None:
    fixed = FixedScale(0.01, 100)
    found = fixed.round(np.array([[0.123, -0.9, 1.6, -1.2]], np.float32))
    np.testing.assert_allclose(found, [[0.12, -0.9, 1.55, -1.0]], atol=1e-6)


def test_rows_of_like_sizes_get_a_fixed_scale_and_others_do_not() -> None:
    alike = rows()
    unlike = alike * np.geomspace(0.01, 1, len(alike), dtype=np.float32)[:, None]
    form, reason = choose(known(alike))
    assert isinstance(form, FixedScale)
    assert reason.startswith("a fixed scale has 1.")
    form, reason = choose(known(unlike))
    assert form == RowScales()
    assert "times the error of a scale for each row" in reason


def test_a_range_of_random_sources_is_not_relied_upon() -> None:
    form, reason = choose(known(rows(), random=True))
    assert form == RowScales()
    assert "random sources" in reason
    assert choose(known(np.abs(rows()), random=True, nonnegative=True))[0] == RowScales(True)


@pytest.mark.parametrize("observed", [None, np.full((2, 4), np.nan, np.float32)])
def test_what_was_not_observed_has_a_scale_of_each_row(observed: Array | None) -> None:
    form, reason = choose(None if observed is None else known(observed))
    assert form == RowScales()
    assert "observed" in reason


def test_the_rarest_numbers_are_cut_off_if_that_rounds_the_others_better() -> None:
    heavy = np.clip(RANDOM.standard_normal((4000, 16)), -5, 5).astype(np.float32)
    heavy[0, 0] = 5.5
    fixed = FixedScale.of(ValueRange(float(heavy.min()), float(heavy.max())), heavy)
    assert fixed.scale < 0.95 * (heavy.max() - heavy.min()) / 255
    even = np.tile(np.linspace(-1, 1, 16, dtype=np.float32), (100, 1))
    assert FixedScale.of(ValueRange(-1, 1), even).scale == pytest.approx(2 / 255)


FORMS = [
    FixedScale(0.031, 120),
    FixedScale(0.02, 0),
    RowScales(),
    RowScales(nonnegative=True),
]


def graph(form: Activations, weight: Array, bias: Array | None, *, is_table: bool) -> ir.Model:
    """y = x @ weight + bias, x [B, Q, K]."""
    inputs = len(weight)
    x = ir.Value(
        name="x", shape=ir.Shape(["b", "q", inputs]), type=ir.TensorType(ir.DataType.FLOAT)
    )
    made = ir.Graph([x], [], nodes=[], opset_imports={"": 21, "com.microsoft": 1}, name="g")
    added = None
    if bias is not None:
        added = ir.Value(name="bias", const_value=ir.tensor(bias), shape=ir.Shape(bias.shape))
        made.register_initializer(added)
    rounded = round_weight(weight, bits=Int8.bits)
    product = Int8Form(form, "").table_product if is_table else Int8Form(form, "").product
    nodes = product(made, "w", rounded, x, added)
    made.extend(nodes)
    y = nodes[-1].outputs[0]
    y.name, y.type = "y", ir.TensorType(ir.DataType.FLOAT)
    made.outputs.append(y)
    return ir.Model(made, ir_version=10)


@pytest.mark.parametrize("is_table", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (7, 3)])
def test_a_product_is_that_of_the_rounded_numbers(
    form: Activations, shape: tuple[int, int], with_bias: bool, is_table: bool
) -> None:
    weight, bias = rows(24, 10), rows(1, 10)[0] if with_bias else None
    x = rows(shape[0] * shape[1]).reshape(*shape, 24)
    x[0, 0] = 0
    if form.zero_point == 0:
        x = np.abs(x)
    rounded = round_weight(weight, bits=8).dequantized()
    expected = form.round(x.reshape(-1, 24)) @ rounded
    if bias is not None:
        expected = expected + bias
    model = graph(form, weight, bias, is_table=is_table)
    found: Any = run(model, {"x": x})["y"]
    np.testing.assert_allclose(found, expected.reshape(*shape, 10), atol=2e-5)


@pytest.mark.parametrize("is_table", [False, True])
def test_products_run_unsaturated_whatever_the_processor(
    is_table: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where sums would saturate, weights are unsigned in the session, not in the graph."""
    weight = np.full((24, 10), 0.7, np.float32)
    model = graph(FixedScale(0.031, 120), weight, None, is_table=is_table)
    before = ir.to_proto(model).SerializeToString()
    x = np.full((7, 3, 24), 4.0, np.float32)
    for saturating in (False, True):
        if not (cpu.saturates() and not saturating):
            monkeypatch.setattr(running, "saturates", lambda answer=saturating: answer)
            found: Any = run(model, {"x": x})["y"]
            np.testing.assert_allclose(found, 24 * 0.7 * 0.031 * 129, rtol=1e-5)
    assert ir.to_proto(model).SerializeToString() == before


def test_products_of_one_input_quantize_it_once() -> None:
    for form in (FixedScale(0.1, 3), RowScales()):
        model = graph(form, rows(24, 10), None, is_table=False)
        x = model.graph.inputs[0]
        nodes = Int8Form(form, "").product(
            model.graph, "v", round_weight(rows(24, 5), bits=8), x, None
        )
        assert not {"QuantizeLinear", "ReduceMax", "Div"} & {node.op_type for node in nodes}


def test_the_quantizing_nodes_are_those_of_onnx() -> None:
    """In the eyes of the reference evaluator: what `round` says, as integers."""
    x = rows(6)
    x[2] = 0
    for form in (FixedScale(0.027, 111), RowScales()):
        value = ir.Value(name="x", shape=ir.Shape([6, 24]), type=ir.TensorType(ir.DataType.FLOAT))
        made = ir.Graph([value], [], nodes=[], opset_imports={"": 21}, name="g")
        nodes, integers = form.quantize(made, value)
        made.extend(nodes)
        integers.values.name, integers.values.type = "q", ir.TensorType(ir.DataType.UINT8)
        integers.values.shape = ir.Shape([6, 24])
        made.outputs.append(integers.values)
        proto = ir.to_proto(ir.Model(made, ir_version=10))
        onnx.checker.check_model(proto)
        (found,) = ReferenceEvaluator(proto).run(None, {"x": x})
        scale = np.float32(form.scale) if isinstance(form, FixedScale) else None
        if scale is None:
            scale = np.maximum(np.abs(x).max(1, keepdims=True), 1e-30) / 127
        steps = form.round(x) / scale + form.zero_point
        np.testing.assert_allclose(np.asarray(found, float), steps, atol=1e-3)
