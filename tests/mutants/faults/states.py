"""Faults of recurrent decoders: their units, and the states that they carry between steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.runtime.backends.onnxruntime.cpu_state import HostState

from ..editing import EditedBundle, GraphEditor
from .fault import BundleFault, ExporterFault, Fault, Kind, RuntimeFault

KIND: Kind = "recurrent states"
Carry = Callable[..., Tensor]
Unit = Callable[[Any, Tensor, Carry], Tensor]


def _in_decoders(change: Callable[[GraphEditor], None]) -> Callable[[EditedBundle], None]:
    """A fault of the decoder, from which the decoder of a shortlist is made."""

    def inject(edited: EditedBundle) -> None:
        for name in ("decoder", "shortlist_decoder"):
            change(edited.graph(name))

    return inject


def _not_replaced(editor: GraphEditor) -> None:
    past = editor.value("past_state_1")
    state = editor.value("present_state_1")
    editor.replace(state, lambda _: editor.op("Mul", past, editor.constant(1.0)), uses=False)


def _swapped(editor: GraphEditor) -> None:
    """Each of two layers leaves its state as the other's."""
    outputs = editor.graph.outputs
    index = {value.name: i for i, value in enumerate(outputs)}
    first, second = index["present_state_0"], index["present_state_1"]
    one, other = outputs[first], outputs[second]
    one.name, other.name = other.name, one.name
    outputs[first], outputs[second] = other, one


def _of_another_layer(editor: GraphEditor) -> None:
    editor.of_type("Scan")[1].replace_input_with(0, editor.value("past_state_0"))


def _changed(change: Callable[[GraphEditor, ir.Value], ir.Value]) -> Callable[[GraphEditor], None]:
    """The states of all layers are changed after each step."""

    def apply(editor: GraphEditor) -> None:
        for layer, _ in enumerate(editor.of_type("Scan")):
            state = editor.value(f"present_state_{layer}")
            editor.replace(state, lambda state: change(editor, state))

    return apply


def _reset(editor: GraphEditor, state: ir.Value) -> ir.Value:
    return editor.op("Mul", state, editor.constant(0.0))


def _in_half(editor: GraphEditor, state: ir.Value) -> ir.Value:
    half = editor.op("Cast", state, to=ir.DataType.FLOAT16)
    return editor.op("Cast", half, to=ir.DataType.FLOAT)


def _of_first_row(editor: GraphEditor, state: ir.Value) -> ir.Value:
    first = editor.op("Gather", state, editor.constant([0]))
    return editor.op("Expand", first, editor.op("Shape", state))


def _reset_at_position(position: int) -> Callable[[GraphEditor, ir.Value], ir.Value]:
    def change(editor: GraphEditor, state: ir.Value) -> ir.Value:
        there = editor.op("Equal", editor.value("position"), editor.constant(position))
        rows = editor.op("Unsqueeze", there, editor.constant([1]))
        return editor.op("Where", rows, editor.constant(0.0), state)

    return change


def _bias_dropped(edited: EditedBundle) -> None:
    name = "decoder.layers.1.recurrence.forget.bias"
    for graph in ("decoder", "shortlist_decoder"):
        editor = edited.graph(graph)
        editor.set_weight(name, np.zeros_like(editor.weight(name)))


def _unit(wrong: Unit, layers: tuple[int, ...] = (1,)) -> Callable[[Any], None]:
    """The units of some layers compute something else."""

    def change(model: Any) -> None:
        for layer in layers:
            unit = model.decoder.layers[layer].recurrence
            unit.forward = lambda x, carry, unit=unit: wrong(unit, x, carry)

    return change


def _gate(unit: Any, x: Tensor) -> Tensor:
    return torch.sigmoid(unit.forget(x))


def _complement_swapped(unit: Any, x: Tensor, carry: Carry) -> Tensor:
    forget = _gate(unit, x)
    return F.relu(carry(unit, 1 - forget, forget * unit.update(x)))


def _complement_missing(unit: Any, x: Tensor, carry: Carry) -> Tensor:
    return F.relu(carry(unit, _gate(unit, x), unit.update(x)))


def _relu_missing(unit: Any, x: Tensor, carry: Carry) -> Tensor:
    forget = _gate(unit, x)
    return carry(unit, forget, (1 - forget) * unit.update(x))


def _tanh(unit: Any, x: Tensor, carry: Carry) -> Tensor:
    """As in the first recurrent units of this kind (Lei et al. 2018)."""
    return torch.tanh(_relu_missing(unit, x, carry))


def _relu_of_update(unit: Any, x: Tensor, carry: Carry) -> Tensor:
    forget = _gate(unit, x)
    return carry(unit, forget, (1 - forget) * F.relu(unit.update(x)))


def _no_bias(model: Any) -> None:
    model.decoder.layers[0].recurrence.forget.bias = None


def _without_states(right: Callable[..., Any]) -> Callable[..., Any]:
    """A method that leaves the states of rows as they are."""

    def call(state: HostState, *given: Any) -> Any:
        kept, state._states = state._states, []
        try:
            return right(state, *given)
        finally:
            state._states = kept

    return call


def _method(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    wrong = _without_states(getattr(HostState, name))
    return lambda patch: patch.setattr(HostState, name, wrong)


def _fault(name: str, change: Callable[[GraphEditor], None], *bundles: str) -> BundleFault:
    return BundleFault(name, KIND, bundles, _in_decoders(change))


def _of_unit(name: str, change: Callable[[Any], None], *bundles: str) -> ExporterFault:
    return ExporterFault(name, KIND, bundles, torch.no_grad()(change))


ALL = ("ssru cpu fp32", "ssru neutral fp16", "ssru cpu int8", "ssru cpu int4")
EXPORTED = ("ssru cpu fp32", "ssru cpu int4")

FAULTS: tuple[Fault, ...] = (
    _fault("the state of a layer is not replaced", _not_replaced, *ALL),
    _fault("two layers leave each other's states", _swapped, *ALL),
    _fault("a layer begins with the state of another", _of_another_layer, *ALL),
    _fault("states are reset at each step", _changed(_reset), *ALL),
    _fault("states are reset at position 8", _changed(_reset_at_position(8)), *ALL),
    _fault(
        "states are rounded to 16 bits between steps",
        _changed(_in_half),
        *("ssru cpu fp32", "ssru cpu int8"),
    ),
    _fault("all rows have the first row's state", _changed(_of_first_row), *ALL),
    BundleFault("the bias of a forget gate is zero", KIND, ALL, _bias_dropped),
    _of_unit(
        "the forget gate and its complement are swapped", _unit(_complement_swapped), *EXPORTED
    ),
    _of_unit(
        "the complement of the forget gate is missing", _unit(_complement_missing), "ssru cpu fp32"
    ),
    _of_unit("a unit of the model has no ReLU", _unit(_relu_missing), *EXPORTED),
    _of_unit("a unit of the model has tanh", _unit(_tanh), "ssru cpu fp32"),
    _of_unit("a unit of the model has its ReLU inside", _unit(_relu_of_update), "ssru cpu int8"),
    _of_unit("a forget gate of the model has no bias", _no_bias, "ssru cpu fp32", "ssru cpu int8"),
    RuntimeFault("states are not reordered with beams", KIND, ALL, _method("reorder")),
    RuntimeFault(
        "a row that joins has the state of a row before", KIND, ALL, _method("_take_source")
    ),
)
"""Faults of units, of their states, and of the rows that states belong to."""
