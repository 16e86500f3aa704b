"""Graphs run from memory give the same outputs as from files, and write no files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.typing import NDArray

from dragoman.optimize.running import InMemorySession, run, samples_for_graph
from dragoman.runtime import Bundle

FLOAT = ir.DataType.FLOAT
IO_COUNTERS = Path("/proc/self/io")


def value(
    name: str,
    shape: Sequence[int],
    dtype: ir.DataType = FLOAT,
    tensor: ir.TensorProtocol | None = None,
) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype), const_value=tensor)


def weight(name: str, numbers: NDArray[np.generic]) -> ir.Value:
    tensor = ir.tensor(numbers, name=name)
    return value(name, numbers.shape, tensor.dtype, tensor)


def options() -> onnxruntime.SessionOptions:
    chosen = onnxruntime.SessionOptions()
    chosen.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    chosen.intra_op_num_threads = 1
    return chosen


def in_float32(numbers: NDArray[np.generic]) -> ir.Model:
    """A graph without inputs that returns its only weight as float32."""
    stored = weight("weight", numbers)
    if stored.dtype in (ir.DataType.INT4, ir.DataType.UINT4):  # Cast is not implemented for them
        node = ir.node("DequantizeLinear", [stored, one := weight("one", np.array(1, np.float32))])
        weights = [stored, one]
    else:
        node, weights = ir.node("Cast", [stored], {"to": FLOAT}), [stored]
    (result,) = node.outputs
    result.name, result.shape, result.type = "result", stored.shape, ir.TensorType(FLOAT)
    graph = ir.Graph(
        [], [result], nodes=[node], initializers=weights, opset_imports={"": 24}, name="graph"
    )
    return ir.Model(graph, ir_version=11)


@pytest.mark.parametrize("shape", [(51, 42), (41, 51), (3,)], ids=["even", "odd", "small"])
@pytest.mark.parametrize(
    "dtype",
    [
        *(np.float32, np.float64, np.float16, ml_dtypes.bfloat16),
        *(np.int8, np.uint8, np.int32, np.int64, np.bool_, ml_dtypes.int4, ml_dtypes.uint4),
    ],
    ids=lambda dtype: np.dtype(dtype).name,
)
def test_weights_of_every_type_arrive(dtype: type[np.generic], shape: tuple[int, ...]) -> None:
    """With an odd number of 4-bit elements, the last byte holds only one."""
    low = -7 if dtype == ml_dtypes.int4 else 0
    numbers = np.random.default_rng(0).integers(low, 8, shape).astype(dtype)
    outputs = InMemorySession(in_float32(numbers), options()).run({})
    np.testing.assert_array_equal(outputs["result"], numbers.astype(np.float32))


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_outputs_are_those_of_the_file(neutral: Bundle, name: str) -> None:
    spec = neutral.manifest.graphs[name]
    path = neutral.path(spec.file)
    samples = samples_for_graph(spec, neutral.manifest.model)
    session = onnxruntime.InferenceSession(str(path), options(), ["CPUExecutionProvider"])
    expected = dict(
        zip([o.name for o in session.get_outputs()], session.run(None, samples), strict=True)
    )
    found = run(ir.load(path), samples)
    assert list(found) == list(expected)
    for output, numbers in expected.items():
        np.testing.assert_array_equal(found[output], numbers)


@pytest.mark.skipif(not IO_COUNTERS.exists(), reason="the kernel counts no bytes written")
def test_nothing_is_written(neutral: Bundle) -> None:
    def written() -> int:
        counters = dict(line.split(": ") for line in IO_COUNTERS.read_text().splitlines())
        return int(counters["wchar"])

    spec = neutral.manifest.graphs["decoder"]
    model = ir.load(neutral.path(spec.file))
    samples = samples_for_graph(spec, neutral.manifest.model)
    before = written()
    run(model, samples)
    assert written() - before < 1000


def test_the_graph_keeps_its_weights(neutral: Bundle) -> None:
    spec = neutral.manifest.graphs["decoder"]
    model = ir.load(neutral.path(spec.file))
    before = {name: v.const_value for name, v in model.graph.initializers.items()}
    run(model, samples_for_graph(spec, neutral.manifest.model))
    after = {name: v.const_value for name, v in model.graph.initializers.items()}
    assert before.keys() == after.keys()
    assert all(before[name] is after[name] for name in before)


def test_weights_outlive_the_graph() -> None:
    """The session reads them in place, and no one else holds a reference."""
    numbers = np.arange(40_000, dtype=np.float32)
    session = InMemorySession(in_float32(numbers.copy()), options())
    scratch = [np.full(40_000, -1, np.float32) for _ in range(20)]
    np.testing.assert_array_equal(session.run({})["result"], numbers)
    assert len(scratch) == 20


def test_weights_of_subgraphs() -> None:
    """A branch has its own large weight, and reads one of the outer graph."""
    numbers = np.random.default_rng(0).standard_normal((30, 30)).astype(np.float32)
    outer, inner = weight("outer", numbers), weight("inner", 2 * numbers)

    def branch(node: ir.Node, *weights: ir.Value) -> ir.Graph:
        (result,) = node.outputs
        result.name, result.shape, result.type = node.op_type, outer.shape, ir.TensorType(FLOAT)
        return ir.Graph([], [result], nodes=[node], initializers=weights, name=node.op_type)

    condition = value("condition", [], ir.DataType.BOOL)
    choice = ir.node(
        "If",
        [condition],
        {
            "then_branch": branch(ir.node("Add", [outer, inner]), inner),
            "else_branch": branch(ir.node("Neg", [outer])),
        },
    )
    (result,) = choice.outputs
    result.name, result.shape, result.type = "result", outer.shape, ir.TensorType(FLOAT)
    graph = ir.Graph(
        [condition],
        [result],
        nodes=[choice],
        initializers=[outer],
        opset_imports={"": 24},
        name="graph",
    )
    session = InMemorySession(ir.Model(graph, ir_version=11), options())
    np.testing.assert_array_equal(
        session.run({"condition": np.array(True)})["result"], numbers + 2 * numbers
    )
    np.testing.assert_array_equal(session.run({"condition": np.array(False)})["result"], -numbers)


def test_a_weight_that_is_an_input_too() -> None:
    """As in ONNX files before IR version 4, where it is the default value of the input."""
    numbers = np.arange(600, dtype=np.float32)
    model = in_float32(numbers)
    model.graph.inputs.append(model.graph.initializers["weight"])
    session = InMemorySession(model, options())
    np.testing.assert_array_equal(session.run({})["result"], numbers)
