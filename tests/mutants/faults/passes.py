"""Faults of passes: fusions and quantizers that are wrong on purpose while `build` runs.

A pass compares a graph's outputs before and after it, within a tolerance. What that does not catch,
parity has to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from dragoman.optimize import openvino
from dragoman.optimize.cpu import attention, projections, quantized_caches
from dragoman.optimize.fusions.cleanup import Tidy
from dragoman.optimize.graph_pass import Changes, RulePass
from dragoman.optimize.graph_values import new_weight
from dragoman.optimize.precision import int8, rounding, weights
from dragoman.optimize.precision.blocks import BlockQuantized
from dragoman.optimize.precision.half import Half
from dragoman.optimize.precision.int8 import FixedScale, QuantizedInput, RowScales
from dragoman.optimize.precision.rounding import IntegerWeight
from dragoman.optimize.precision.weight_only import WeightOnly

from .fault import Kind, PassFault

Patch = Callable[[pytest.MonkeyPatch], None]
Wrong = Callable[..., Any]
"""Called with the right function, then with its arguments."""


def _in_place_of(holder: object, name: str, wrong: Wrong) -> Patch:
    """A function of a module, or a method of a class, replaced by a wrong one."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        right = getattr(holder, name)
        monkeypatch.setattr(holder, name, lambda *given, **named: wrong(right, *given, **named))

    return patch


def _all_of(*patches: Patch) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        for one in patches:
            one(monkeypatch)

    return patch


def _after(name: str, change: Callable[[ir.Graph], None]) -> Patch:
    """A fusion that changes the graph once more when it is done."""

    def apply(right: Callable[..., Changes], fusion: RulePass, model: ir.Model) -> Changes:
        changes = right(fusion, model)
        if fusion.name == name:
            change(model.graph)
        return changes

    return _in_place_of(RulePass, "apply", apply)


def _of_type(graph: ir.Graph, *op_types: str) -> list[ir.Node]:
    return [node for node in graph if node.op_type in op_types]


def _numbers(value: ir.Value) -> NDArray[Any]:
    assert value.const_value is not None
    return np.array(value.const_value.numpy())


def _other_order(right: Wrong, op: Any, values: list[Any]) -> Any:
    query, key, value = values
    return right(op, [key, query, value])


def _without_bias(right: Wrong, value: ir.Value) -> Any:
    part = right(value)
    return None if part is None else part._replace(bias=None)


def _packed_without_biases(right: Wrong, op: Any, values: list[Any]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        _in_place_of(projections, "product", _without_bias)(patch)
        return right(op, values)


def _other_scale(change: Callable[[float], float]) -> Patch:
    def scaled(right: Wrong, op: Any, weight: ir.Value, scale: float) -> Any:
        return right(op, weight, change(scale))

    return _in_place_of(projections, "_scaled", scaled)


def _other_epsilon(graph: ir.Graph) -> None:
    for node in _of_type(graph, "InstanceNormalization"):
        node.attributes["epsilon"] = ir.AttrFloat32("epsilon", 1e-3)


def _weak_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "MASK_FILTER_VALUE", -1.0)


def _tanh(graph: ir.Graph) -> None:
    for node in _of_type(graph, "BiasGelu"):
        node.op_type = "FastGelu"


def _other_table(graph: ir.Graph) -> None:
    """The projection to logits has a table of its own, in which two rows are swapped."""
    for node in _of_type(graph, "FusedMatMul"):
        table = node.inputs[1]
        assert table is not None
        rows = _numbers(table)
        rows[[20, 21]] = rows[[21, 20]]
        node.replace_input_with(1, new_weight(graph, f"{table.name}.tied", rows))


def _small_dropped(right: Wrong, tidy: Tidy, model: ir.Model) -> Changes:
    """What is almost zero is tidied away."""
    changes: Changes = right(tidy, model)
    for value in model.graph.initializers.values():
        if value.dtype == ir.DataType.FLOAT:
            numbers = _numbers(value)
            numbers[np.abs(numbers) < 3e-4] = 0
            value.const_value = ir.tensor(numbers, name=value.name)
    return changes


def _rounded(change: Callable[[IntegerWeight], IntegerWeight]) -> Patch:
    """What rounding makes of each weight is changed."""
    return _in_place_of(
        weights, "round_weight", lambda right, *given, **named: change(right(*given, **named))
    )


def _scales_off(rounded: IntegerWeight) -> IntegerWeight:
    return rounded._replace(scales=rounded.scales * np.float32(1.02))


def _column_off(rounded: IntegerWeight) -> IntegerWeight:
    integers = rounded.integers.copy()
    largest = int(np.abs(integers).max())
    integers[:, 3] = np.minimum(integers[:, 3].astype(int) + 1, largest)
    return rounded._replace(integers=integers)


def _wrong_sign(right: Wrong, left: Any, integers: Any, factor: Any, *others: Any) -> None:
    """What is left over of an input is added where it should be subtracted."""
    right(left, integers, 2 * np.diag(np.diag(factor)) - factor, *others)


def _cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales are for three quarters or half of the largest weight."""
    for bits, share in ((8, 0.75), (4, 0.5)):  # at half, weights of 8 bits would stay in fp32
        monkeypatch.setitem(rounding.SHRINKAGES, bits, np.array([share]))


def _zero_point_off(right: Wrong, scheme: BlockQuantized, rounded: IntegerWeight) -> Any:
    """Integers are written relative to 9, and read relative to 8."""
    return right(scheme, rounded._replace(integers=np.minimum(rounded.integers + 1, 7)))


def _row_zero_point_off(right: Wrong, rows: RowScales, graph: ir.Graph, x: ir.Value) -> Any:
    nodes, integers = right(rows, graph, x)
    other = new_weight(graph, "zero_point_off", np.array(rows.zero_point ^ 1, np.uint8))
    return nodes, integers._replace(zero_point=other)


def _row_scale_forgotten(
    right: Wrong, product: ir.Value, integers: QuantizedInput, bias: ir.Value | None
) -> Any:
    return right(product, integers._replace(row_scale=None), bias)


def _negative_cut_off(right: Wrong, rows: RowScales, graph: ir.Graph, x: ir.Value) -> Any:
    return right(dataclasses.replace(rows, nonnegative=True), graph, x)


def _half_the_range(right: Wrong, fixed: FixedScale, graph: ir.Graph, x: ir.Value) -> Any:
    return right(dataclasses.replace(fixed, scale=fixed.scale / 2), graph, x)


def _dequantized_with(place: int, change: Callable[[Any], Any]) -> Wrong:
    """A `DequantizeLinear` of an input whose scale or zero point is not that of its integers."""

    def wrong(right: Wrong, form: openvino.QDQForm, graph: ir.Graph, x: ir.Value) -> Any:
        nodes, read = right(form, graph, x)
        for node in nodes:
            if node.op_type == "DequantizeLinear":
                own = node.inputs[place]
                other = new_weight(graph, f"{own.name}.other", change(_numbers(own)))
                node.replace_input_with(place, other)
        return nodes, read

    return wrong


_other_step = _dequantized_with(1, lambda scale: np.asarray(scale * np.float32(1.02)))
_other_zero = _dequantized_with(2, lambda zero: np.asarray(zero + np.uint8(1)))


def _first_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    first: list[FixedScale] = []

    def choose(right: Wrong, known: Any, most: float) -> Any:
        found, reason = right(known, most)
        first.append(found)
        return first[0], reason

    _in_place_of(openvino, "choose", choose)(monkeypatch)


def _bias_dropped(
    right: Wrong, form: Any, graph: Any, name: str, rounded: Any, x: Any, bias: Any
) -> Any:
    return right(form, graph, name, rounded, x, None)


def _blocks_reversed(
    right: Wrong, scheme: Any, graph: Any, name: str, rounded: IntegerWeight, *others: Any
) -> Any:
    scales = np.ascontiguousarray(rounded.scales[::-1])
    return right(scheme, graph, name, rounded._replace(scales=scales), *others)


def _untransposed(right: Wrong, graph: ir.Graph, name: str, rounded: IntegerWeight) -> Any:
    """The numbers of a table [D, V] are read as [V, D]."""
    width, rows = rounded.integers.shape
    as_read = np.ascontiguousarray(rounded.integers).reshape(rows, width).T
    return right(graph, name, rounded._replace(integers=np.ascontiguousarray(as_read)))


def _cache_scales(
    change: Callable[[NDArray[Any], NDArray[Any]], tuple[NDArray[Any], NDArray[Any]]],
) -> Patch:
    def quantize(
        right: Wrong, graph: Any, node: Any, key: NDArray[Any], value: NDArray[Any]
    ) -> None:
        right(graph, node, *change(key, value))

    return _in_place_of(quantized_caches, "_quantize", quantize)


def _gains_in_bfloat16(right: Wrong, half: Half, graph: ir.Graph, wide: Any) -> None:
    for value in graph.initializers.values():
        if (value.name or "").endswith("norm.gain"):
            rounded = _numbers(value).astype(ml_dtypes.bfloat16).astype(np.float32)
            value.const_value = ir.tensor(rounded, name=value.name)
    right(half, graph, wide)


def _mask_too_small(right: Wrong, half: Half, graph: ir.Graph, wide: Any) -> None:
    """What is far below zero becomes -1, so that it fits."""
    for value in graph.initializers.values():
        numbers = _numbers(value)
        if value.dtype == ir.DataType.FLOAT and numbers.size == 1 and numbers.item() <= -1e4:
            value.const_value = ir.tensor(np.full_like(numbers, -1), name=value.name)
    right(half, graph, wide)


def _fault(
    kind: Kind, name: str, patch: Patch, *bundles: str, calibrated: bool = False
) -> PassFault:
    return PassFault(name, kind, bundles, patch, calibrated)


OPERATORS: Kind = "masks and operators"
WEIGHTS: Kind = "weights and epsilons"
CACHES: Kind = "positions and caches"
SCALES: Kind = "scales and integers"

FAULTS: tuple[PassFault, ...] = (
    _fault(
        WEIGHTS,
        "projections are packed in another order",
        _in_place_of(projections, "packed", _other_order),
        *("bart cpu fp32", "gpt2 cpu int8"),
    ),
    _fault(
        WEIGHTS,
        "packed projections lose their biases",
        _in_place_of(projections, "packed", _packed_without_biases),
        *("gpt2 cpu fp32", "bart cpu int4"),
    ),
    _fault(
        OPERATORS,
        "queries are scaled twice",
        _other_scale(lambda scale: scale**2),
        *("bart cpu fp32", "whisper cpu int8"),
    ),
    _fault(
        OPERATORS,
        "the scale of queries is forgotten",
        _other_scale(lambda scale: 1.0),
        "g2p-en cpu int4",
    ),
    _fault(
        WEIGHTS,
        "fused norms have an epsilon of 1e-3",
        _after("layer-norm", _other_epsilon),
        *("bart cpu fp32", "bert-embedding cpu fp32", "gpt2 cpu int8"),
    ),
    _fault(OPERATORS, "padding scores 1 less", _weak_mask, "bart cpu fp32", "g2p-en cpu int8"),
    _fault(
        OPERATORS,
        "a fused GELU has tanh",
        _after("bias-gelu", _tanh),
        "whisper cpu fp32",
    ),
    _fault(
        WEIGHTS,
        "logits are of another table",
        _after("tied-output", _other_table),
        *("bart cpu fp32", "g2p-en cpu fp32"),
    ),
    _fault(
        WEIGHTS,
        "weights below 0.0003 are tidied away",
        _in_place_of(Tidy, "apply", _small_dropped),
        *("bert-embedding cpu fp32", "t5 cpu fp32", "whisper cpu int8"),
    ),
    _fault(
        SCALES,
        "weights are rounded with scales 2 % too large",
        _rounded(_scales_off),
        *("bart cpu int8", "gpt2 neutral int8", "gpt2 cpu int4"),
    ),
    _fault(
        SCALES,
        "integers of one output are rounded up",
        _rounded(_column_off),
        *("t5 cpu int8", "g2p-en cpu int4", "bart neutral int4"),
    ),
    _fault(
        SCALES,
        "errors are compensated with the wrong sign",
        _in_place_of(rounding, "_round_compensating", _wrong_sign),
        *("g2p-en cpu int8", "gpt2 cpu int4"),
        calibrated=True,
    ),
    _fault(SCALES, "large weights are cut off", _cut_off, "gpt2 cpu int8", "bart cpu int4"),
    _fault(
        SCALES,
        "integers are written relative to 9",
        _in_place_of(BlockQuantized, "_packed", _zero_point_off),
        "t5 cpu int4",
    ),
    _fault(
        SCALES,
        "activations are read relative to another zero",
        _in_place_of(RowScales, "quantize", _row_zero_point_off),
        "bart cpu int8",
    ),
    _fault(
        SCALES,
        "products are not scaled by row",
        _in_place_of(int8, "_scaled", _row_scale_forgotten),
        *("g2p-en cpu int8", "bert-embedding cpu int8"),
    ),
    _fault(
        SCALES,
        "negative activations are cut off",
        _in_place_of(RowScales, "quantize", _negative_cut_off),
        "whisper cpu int8",
    ),
    _fault(
        SCALES,
        "fixed scales cover half of the range",
        _in_place_of(FixedScale, "quantize", _half_the_range),
        *("g2p-en cpu int8", "bert-embedding openvino int8"),
        calibrated=True,
    ),
    _fault(
        WEIGHTS,
        "biases of rounded products are dropped",
        _all_of(
            _in_place_of(int8.Int8Form, "product", _bias_dropped),
            _in_place_of(BlockQuantized, "product", _bias_dropped),
            _in_place_of(WeightOnly, "product", _bias_dropped),
        ),
        *("bart cpu int8", "gpt2 neutral int8", "gpt2 cpu int4", "bert-embedding openvino int8"),
    ),
    _fault(
        SCALES,
        "inputs are dequantized with a scale that is 2 % larger",
        _in_place_of(openvino.QDQForm, "_read", _other_step),
        "bert-embedding openvino int8",
        calibrated=True,
    ),
    _fault(
        SCALES,
        "inputs are dequantized relative to another zero",
        _in_place_of(openvino.QDQForm, "_read", _other_zero),
        "bert-embedding openvino int8",
        calibrated=True,
    ),
    _fault(
        SCALES,
        "all products have the scale of the first one's inputs",
        _first_scale,
        "bert-embedding openvino int8",
        calibrated=True,
    ),
    _fault(
        SCALES,
        "scales of blocks are written in reverse order",
        _all_of(
            _in_place_of(BlockQuantized, "_weights", _blocks_reversed),
            _in_place_of(WeightOnly, "product", _blocks_reversed),
        ),
        *("bart cpu int4", "bart neutral int4"),
    ),
    _fault(
        SCALES,
        "rounded tables are not transposed",
        _in_place_of(int8, "table", _untransposed),
        "g2p-en cpu int8",
    ),
    _fault(
        CACHES,
        "the scales of caches are a quarter",
        _cache_scales(lambda key, value: (key / 4, value / 4)),
        *("gpt2 cpu int8", "g2p-en cpu int4"),
    ),
    _fault(
        CACHES,
        "the scales of keys are those of values",
        _cache_scales(lambda key, value: (value, value)),
        *("bart cpu int8", "gpt2 cpu int4"),
    ),
    _fault(
        WEIGHTS,
        "gains went through bfloat16",
        _in_place_of(Half, "_halve_weights", _gains_in_bfloat16),
        *("g2p-en neutral fp16", "bert-classifier neutral fp16"),
    ),
    _fault(
        OPERATORS,
        "masked scores become -1 in 16 bits",
        _in_place_of(Half, "_halve_weights", _mask_too_small),
        "t5 neutral fp16",
    ),
)
"""Faults of fusions, of rounding, of caches and of 16 bits."""
