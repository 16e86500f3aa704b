"""Graphs that TensorRT does not parse."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto
from onnx.helper import make_node

from dragoman.optimize.tensorrt.parser import EngineError, parse
from dragoman.runtime.backends.tensorrt.messages import Messages, make_logger
from dragoman.runtime.backends.tensorrt.packages import Package

from .conftest import Graph

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def _parse(rtx: Package, graph: object) -> object:
    builder = rtx.module.Builder(make_logger(rtx.module, Messages()))
    return parse(rtx.module, builder, graph)  # type: ignore[arg-type]


def test_an_unsupported_operator_is_named_with_its_module(rtx: Package, graph: Graph) -> None:
    file = graph(
        [make_node("NonZero", ["x"], ["y"], name="found_here")],
        {"x": (FLOAT, [2, 3])},
        {"y": (INT64, [2, "n"])},
    )
    with pytest.raises(EngineError) as error:
        _parse(rtx, file)
    message = str(error.value)
    assert message.startswith("made.onnx: NonZero of decoder.layers.1 (node found_here) cannot be")


def test_a_file_that_is_not_a_graph(rtx: Package, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("x") / "none.onnx"
    file.write_bytes(b"not a graph")
    with pytest.raises(EngineError, match=r"none\.onnx: "):
        _parse(rtx, file)


def test_a_sound_graph_parses(rtx: Package, graph: Graph) -> None:
    file = graph([make_node("Relu", ["x"], ["y"])], {"x": (FLOAT, [2])}, {"y": (FLOAT, [2])})
    assert _parse(rtx, file).num_layers >= 1  # type: ignore[attr-defined]
    assert onnx.load(file).graph.node[0].op_type == "Relu"
