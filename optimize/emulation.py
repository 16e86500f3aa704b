"""Emulating 16-bit arithmetic on the CPU, in float32 with each result rounded to 16 bits.

ONNX Runtime has no bfloat16 kernels for the CPU. Where it lacks float16 kernels, it computes whole
subgraphs in float32, so that values that overflow on an accelerator do not overflow there. An
accelerator's kernels accumulate in float32 and round what they write. The emulated graph does the
same, node by node.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx_ir as ir

from dragoman.onnx_graphs.graph_files import write_graphs
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.contract import GraphSpec, TensorSpec
from dragoman.runtime.format.writing import ScratchWriter

from .graph_values import floats

FLOAT = ir.DataType.FLOAT
HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


def has_halves(model: ir.Model) -> bool:
    """Return whether any input or intermediate value of a graph is float16 or bfloat16."""
    values = [v for node in model.graph.all_nodes() for v in node.outputs]
    return any(value.dtype in HALVES for value in (*model.graph.inputs, *values))


def emulate_half(model: ir.Model) -> None:
    """Turn a graph into its emulation, in place.

    All float tensors become float32, and their values remain representable in 16 bits.
    """
    graph = model.graph
    for value in graph.initializers.values():
        if value.dtype in HALVES:
            value.const_value = ir.tensor(floats(value), name=value.name)
            value.type = ir.TensorType(FLOAT)
    for graph_input in graph.inputs:
        if graph_input.dtype in HALVES:
            graph_input.type = ir.TensorType(FLOAT)
    for node in list(graph):
        for output in node.outputs:
            if output.dtype in HALVES:
                _round(graph, node, output)
        widen_result(node)


def widen_result(node: ir.Node) -> None:
    """Let a node whose attribute states a 16-bit result compute float32."""
    if node.op_type == "Cast" and node.attributes.get_int("to", 0) in HALVES:
        node.attributes["to"] = ir.AttrInt64("to", int(FLOAT))
    elif node.op_type == "ConstantOfShape" and "value" in node.attributes:
        value = node.attributes["value"].as_tensor()
        if value.dtype in HALVES:
            wide = ir.tensor(np.asarray(value.numpy()).astype(np.float32))
            node.attributes["value"] = ir.AttrTensor("value", wide)


def _round(graph: ir.Graph, node: ir.Node, value: ir.Value) -> None:
    name, dtype = value.name, value.dtype
    value.name, value.type = f"{name}.exact", ir.TensorType(FLOAT)
    narrow = ir.node("Cast", [value], {"to": dtype})
    wide = ir.node("Cast", narrow.outputs, {"to": FLOAT})
    rounded = wide.outputs[0]
    rounded.name, rounded.shape, rounded.type = name, value.shape, ir.TensorType(FLOAT)
    ir.convenience.replace_all_uses_with(value, rounded, replace_graph_outputs=True)
    narrow.replace_input_with(0, value)
    graph.insert_after(node, [narrow, wide])


def emulated_bundle(bundle: Bundle, directory: Path) -> Bundle:
    """Write a bundle in float32 that computes the same numbers as a 16-bit bundle.

    Args:
        directory: an empty directory; the manifest's precision stays unchanged
    """
    known = bundle.manifest.model_graphs
    graphs = {name: ir.load(bundle.graph_path(name)) for name in known}
    for model in graphs.values():
        emulate_half(model)
    specs = {name: _in_float32(spec) for name, spec in known.items()}
    files = ScratchWriter(directory)
    write_graphs(graphs, specs, files)
    files.copy_tokenizers(bundle)
    return files.finish(dataclasses.replace(bundle.manifest, graphs=specs))


def _in_float32(graph: GraphSpec) -> GraphSpec:
    def wide(tensor: TensorSpec) -> TensorSpec:
        half = tensor.dtype in ("float16", "bfloat16")
        return dataclasses.replace(tensor, dtype="float32") if half else tensor

    return graph.map(wide)
