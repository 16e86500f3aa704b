"""`check_graph` finds every kind of breach; each test makes one in a sound graph."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from dragoman import DragomanError
from dragoman.export import ContractError
from dragoman.export.exporter import ExportedGraph, check_graph


def breaches(exported: ExportedGraph) -> list[str]:
    with pytest.raises(ContractError) as caught:
        check_graph(exported, "decoder")
    assert isinstance(caught.value, DragomanError)
    assert "decoder" in str(caught.value)
    assert all(problem in str(caught.value) for problem in caught.value.problems)
    return caught.value.problems


def first(exported: ExportedGraph, op_type: str) -> ir.Node:
    return next(node for node in exported.model.graph if node.op_type == op_type)


def input_named(exported: ExportedGraph, name: str) -> ir.Value:
    return next(value for value in exported.model.graph.inputs if value.name == name)


def test_sound_graphs_pass(encoder: ExportedGraph, decoder: ExportedGraph) -> None:
    check_graph(encoder, "encoder")
    check_graph(decoder, "decoder")


def test_an_operator_of_another_domain(decoder: ExportedGraph) -> None:
    node = first(decoder, "Attention")
    node.domain = "com.microsoft"
    (problem,) = breaches(decoder)
    assert "com.microsoft::Attention, outside the default domain" in problem
    assert str(node.name) in problem


@pytest.mark.parametrize("opset", [23, 25])
def test_another_opset(encoder: ExportedGraph, opset: int) -> None:
    encoder.model.opset_imports[""] = opset
    (problem,) = breaches(encoder)
    assert problem == f"expected opset 24, found {{'': {opset}}}"


def test_a_local_function(encoder: ExportedGraph) -> None:
    function = ir.Function("here", "twice", graph=ir.Graph([], [], nodes=[]), attributes=[])
    encoder.model.functions[function.identifier()] = function
    (problem,) = breaches(encoder)
    assert "expected no local functions" in problem and "twice" in problem


def test_an_input_that_nothing_uses(encoder: ExportedGraph) -> None:
    mask = input_named(encoder, "source_mask")
    other = ir.Value(name="other", shape=mask.shape, type=mask.type)
    mask.replace_all_uses_with(other)
    assert breaches(encoder) == ["input source_mask is not used"]


def test_an_input_and_an_output_of_other_names(decoder: ExportedGraph) -> None:
    input_named(decoder, "token").name = "tokens"
    decoder.model.graph.outputs[1].name = "next"
    assert breaches(decoder) == [
        "expected name token, found tokens",
        "expected name next_token, found next",
    ]


def test_an_axis_that_has_lost_its_name(decoder: ExportedGraph) -> None:
    input_named(decoder, "token").shape = ir.Shape(["batch", 1])
    decoder.model.graph.outputs[0].shape = ir.Shape(["batch", None, 50])
    assert breaches(decoder) == [
        "token: expected shape ['batch', 'query'], found ['batch', 1]",
        "logits: expected shape ['batch', 'query', 50], found ['batch', None, 50]",
    ]


def test_an_output_without_a_shape(decoder: ExportedGraph) -> None:
    decoder.model.graph.outputs[2].shape = None
    assert breaches(decoder) == ["next_log_probability has no shape"]


def test_an_output_that_is_an_input(encoder: ExportedGraph) -> None:
    graph = encoder.model.graph
    loose = ir.Value(name="cross_key_0", shape=graph.outputs[0].shape, type=graph.outputs[0].type)
    graph.outputs[0] = loose
    assert breaches(encoder) == ["output cross_key_0 is not computed"]


def test_a_cache_that_is_not_updated_in_place(decoder: ExportedGraph) -> None:
    """By another operator, into a copy of the cache, into another layer's cache."""
    scatters = [node for node in decoder.model.graph if node.op_type == "TensorScatter"]
    by_cache = {str(node.inputs[0].name): node for node in scatters if node.inputs[0] is not None}
    by_cache["past_key_0"].op_type = "ScatterElements"
    copied = ir.node("Identity", [input_named(decoder, "past_value_0")])
    decoder.model.graph.insert_before(by_cache["past_value_0"], copied)
    by_cache["past_value_0"].replace_input_with(0, copied.outputs[0])
    key, value = input_named(decoder, "past_key_1"), input_named(decoder, "past_value_1")
    by_cache["past_key_1"].replace_input_with(0, value)
    by_cache["past_value_1"].replace_input_with(0, key)
    assert breaches(decoder) == [
        "present_key_0 is not TensorScatter of past_key_0",
        "present_value_0 is not TensorScatter of past_value_0",
        "present_key_1 is not TensorScatter of past_key_1",
        "present_value_1 is not TensorScatter of past_value_1",
    ]


def test_all_breaches_are_listed_at_once(decoder: ExportedGraph) -> None:
    decoder.model.opset_imports[""] = 21
    first(decoder, "Attention").domain = "ai.onnx.contrib"
    input_named(decoder, "position").name = "where"
    assert len(breaches(decoder)) == 3
