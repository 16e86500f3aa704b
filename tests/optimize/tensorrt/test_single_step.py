"""Loops over a single query are replaced by its operators, and no others."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx import ModelProto, TensorProto, helper

from dragoman.optimize.fusions.cleanup import Tidy
from dragoman.optimize.running import difference, run, samples_for_graph
from dragoman.optimize.tensorrt.engine_bundle import pinned_bundle
from dragoman.optimize.tensorrt.single_step import SINGLE_STEP
from dragoman.runtime import Bundle

from ..conftest import Optimize

SIZE = 5


def scan(queries: int | str = 1, *, first: str = "Mul", axis: int = 1) -> ModelProto:
    """c_t = f_t * c_(t-1) + u_t over gates and updates [b, queries, 5], or another body."""
    info = helper.make_tensor_value_info
    inside = [info(n, TensorProto.FLOAT, ["b", SIZE]) for n in ("state", "gate", "update")]
    body = helper.make_graph(
        [
            helper.make_node(first, ["gate", "state"], ["kept"]),
            helper.make_node("Add", ["kept", "update"], ["moved"]),
            helper.make_node("Identity", ["moved"], ["shown"]),
        ],
        "body",
        inside,
        [info(n, TensorProto.FLOAT, ["b", SIZE]) for n in ("moved", "shown")],
    )
    node = helper.make_node(
        "Scan",
        ["past", "f", "u"],
        ["present", "y"],
        body=body,
        num_scan_inputs=2,
        scan_input_axes=[axis, axis],
        scan_output_axes=[axis],
    )
    shape = ["b", queries, SIZE] if axis == 1 else [queries, "b", SIZE]
    ends = [info(n, TensorProto.FLOAT, shape) for n in "fuy"]
    states = [info(n, TensorProto.FLOAT, ["b", SIZE]) for n in ("past", "present")]
    graph = helper.make_graph([node], "g", [states[0], *ends[:2]], [states[1], ends[2]])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)


def gru(queries: int | str = 1, **attributes: int) -> ModelProto:
    """A GRU of 5 numbers, with random weights."""
    info, generator = helper.make_tensor_value_info, np.random.default_rng(3)
    weights = [
        helper.make_tensor(name, TensorProto.FLOAT, shape, generator.standard_normal(shape).ravel())
        for name, shape in {
            "w": (1, 3 * SIZE, SIZE),
            "r": (1, 3 * SIZE, SIZE),
            "bias": (1, 6 * SIZE),
        }.items()
    ]
    given: dict[str, Any] = {"hidden_size": SIZE, "linear_before_reset": 1} | attributes
    node = helper.make_node("GRU", ["x", "w", "r", "bias", "", "past"], ["y", "present"], **given)
    states = [info(n, TensorProto.FLOAT, [1, "b", SIZE]) for n in ("past", "present")]
    x = info("x", TensorProto.FLOAT, [queries, "b", SIZE])
    y = info("y", TensorProto.FLOAT, [queries, 1, "b", SIZE])
    graph = helper.make_graph([node], "g", [states[0], x], [states[1], y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)


def values(model: ir.Model, queries: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(5)
    sizes: dict[object, int] = {"b": 3, "q": queries}
    shapes = {
        value.name: [d if isinstance(d, int) else sizes[str(d)] for d in value.shape]
        for value in model.graph.inputs
        if value.name is not None and value.shape is not None
    }
    return {n: generator.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


@pytest.mark.parametrize("made", [scan(), gru()], ids=["scan", "gru"])
def test_one_query_needs_no_loop(made: ModelProto) -> None:
    model = ir.from_proto(made)
    inputs = values(model, 1)
    before = run(model, inputs)
    changes = SINGLE_STEP.apply(model)
    assert (changes.matches, changes.refusals) == (1, ())
    assert {"Scan", "GRU"}.isdisjoint(node.op_type for node in model.graph)
    assert difference(before, run(model, inputs))[1] < 1e-6


def test_gates_are_those_of_pytorch() -> None:
    """ONNX orders gates as update, reset, new; PyTorch as reset, update, new."""
    made = gru()
    weights = {t.name: torch.tensor(t.float_data).reshape(*t.dims) for t in made.graph.initializer}
    theirs = torch.nn.GRU(SIZE, SIZE)
    order = torch.arange(3 * SIZE).reshape(3, SIZE)[[1, 0, 2]].ravel()
    of_input, of_state = weights["bias"][0].chunk(2)
    theirs.weight_ih_l0.data, theirs.weight_hh_l0.data = (
        weights["w"][0, order],
        weights["r"][0, order],
    )
    theirs.bias_ih_l0.data, theirs.bias_hh_l0.data = of_input[order], of_state[order]
    model = ir.from_proto(made)
    SINGLE_STEP.apply(model)
    inputs = values(model, 1)
    with torch.inference_mode():
        _, expected = theirs(torch.tensor(inputs["x"]), torch.tensor(inputs["past"]))
    found = np.asarray(run(model, inputs)["present"], np.float32)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)


LEFT = {
    "queries": (scan("q"), "expected one query on axis 1"),
    "two queries": (scan(2), "expected one query on axis 1"),
    "another body": (scan(first="Sub"), "expected the body Mul, Add, Identity along axis 1"),
    "another axis": (scan(axis=0), "expected the body Mul, Add, Identity along axis 1"),
    "queries of a GRU": (gru("q"), "expected one query on axis 0"),
    "another reset": (gru(linear_before_reset=0), "expected linear_before_reset=1"),
    "another layout": (gru(layout=0), "expected hidden_size and linear_before_reset, found"),
}


@pytest.mark.parametrize(("made", "reason"), LEFT.values(), ids=LEFT.keys())
def test_what_is_left(made: ModelProto, reason: str) -> None:
    model = ir.from_proto(made)
    changes = SINGLE_STEP.apply(model)
    assert changes.matches == 0
    assert [reason in refusal.reason for refusal in changes.refusals] == [True]


@pytest.mark.parametrize("kind", ["recurrent", "gated"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_engines_are_built_from_graphs_without_loops(
    kind: str, precision: str, optimize: Optimize, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    neutral: Bundle = request.getfixturevalue(kind)
    graphs = optimize(neutral, precision, "tensorrt-rtx")
    pinned = pinned_bundle(graphs, tmp_path, 9)
    records = {r.name: r for r in pinned.manifest.passes if r.graph == "decoder"}
    assert records["single-step"].matches == neutral.manifest.model.decoder_layers == 2
    assert not records["single-step"].refusals
    operators = Counter(node.op_type for node in ir.load(pinned.graph_path("decoder")).graph)
    assert not operators.keys() & {"Scan", "GRU", "Loop", "If"}
    spec = pinned.manifest.graphs["decoder"]
    samples = samples_for_graph(spec, pinned.manifest.model)
    before, after = (run(ir.load(b.graph_path("decoder")), samples) for b in (graphs, pinned))
    assert difference(before, after)[1] < (1e-5 if precision == "fp32" else 2e-3)


def test_self_attention_has_no_such_pass(
    neutral: Bundle, optimize: Optimize, tmp_path: Path
) -> None:
    pinned = pinned_bundle(optimize(neutral, "fp16", "tensorrt-rtx"), tmp_path, 9)
    assert "single-step" not in [record.name for record in pinned.manifest.passes]
    model = ir.load(pinned.graph_path("decoder"))
    assert Tidy().apply(model).matches == 0
