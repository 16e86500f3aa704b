"""Emulating 16-bit arithmetic on the CPU, in float32 with each result rounded to 16 bits.

ONNX Runtime has no bfloat16 kernels for the CPU. Where it lacks float16 kernels, it computes whole
subgraphs in float32, in which values do not overflow. An accelerator's kernels accumulate in
float32 and round what they write, and so does the emulated graph, node by node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from dragoman.onnx_graphs.graph_files import load_graph, write_graphs
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.contract import GraphSpec, TensorSpec
from dragoman.runtime.format.writing import ScratchWriter

from .dequantized import QuantizedWeight

FLOAT = ir.DataType.FLOAT
HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


Replacement = Callable[[str, NDArray[Any] | QuantizedWeight], NDArray[Any] | None]
"""Takes the name of a weight and what it holds; returns the numbers to use, or None to keep them.

Numbers are [inputs, outputs] if the weight is held as integers."""


def own_weights(name: str, held: NDArray[Any] | QuantizedWeight) -> None:
    """Keep every weight; see `Replacement`."""


def has_halves(model: ir.Model) -> bool:
    """Return whether any input or intermediate value of a graph is float16 or bfloat16."""
    values = [v for node in model.graph.all_nodes() for v in node.outputs]
    return any(value.dtype in HALVES for value in (*model.graph.inputs, *values))


def emulate_half(model: ir.Model) -> None:
    """Turn a graph into its emulation, in place.

    All float tensors become float32, and their values remain representable in 16 bits.
    """
    for value, dtype in widen(model).items():
        if isinstance(value.type, ir.TensorType):
            _round(value, dtype)


def widen(model: ir.Model, replacement: Replacement = own_weights) -> dict[ir.Value, ir.DataType]:
    """Turn 16-bit numbers of a graph and its subgraphs into float32, in place.

    Args:
        replacement: returns the numbers to use for weights that are 16-bit numbers

    Returns:
        the nodes' outputs that were 16-bit numbers, and their types
    """
    narrow: dict[ir.Value, ir.DataType] = {}
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if value.dtype in HALVES and tensor is not None:
                own = np.asarray(tensor.numpy())
                new = replacement(value.name or "", own)
                numbers = np.ascontiguousarray(own if new is None else new, np.float32)
                value.const_value = ir.tensor(numbers, name=value.name)
        for value in (*graph.inputs, *graph.initializers.values()):
            if value.dtype in HALVES:
                value.type = _wide_type(value.type)
        for node in graph:
            for output in node.outputs:
                if output.dtype in HALVES:
                    narrow[output] = output.dtype
                    output.type = _wide_type(output.type)
            _widen_attributes(node)
    return narrow


def _wide_type(known: ir.TypeProtocol | None) -> ir.TypeProtocol:
    """Return a type, also one of sequences or optionals, with float32 elements."""
    if isinstance(known, ir.SequenceType | ir.OptionalType):
        return type(known)(_wide_type(known.elem_type))
    return ir.TensorType(FLOAT)


def _widen_attributes(node: ir.Node) -> None:
    for name in ("to", "dtype", "output_dtype", "softmax_precision"):
        if name in node.attributes and node.attributes.get_int(name, 0) in HALVES:
            node.attributes[name] = ir.AttrInt64(name, int(FLOAT))
    if node.op_type in ("Constant", "ConstantOfShape") and "value" in node.attributes:
        value = node.attributes["value"].as_tensor()
        if value.dtype in HALVES:
            wide = ir.tensor(np.asarray(value.numpy()).astype(np.float32))
            node.attributes["value"] = ir.AttrTensor("value", wide)


def _round(value: ir.Value, dtype: ir.DataType) -> None:
    node, name = value.producer(), value.name
    assert node is not None and node.graph is not None
    value.name = f"{name}.exact"
    narrow = ir.node("Cast", [value], {"to": dtype})
    narrow.outputs[0].name = f"{name}.narrow"
    wide = ir.node("Cast", narrow.outputs, {"to": FLOAT})
    rounded = wide.outputs[0]
    rounded.name, rounded.shape, rounded.type = name, value.shape, ir.TensorType(FLOAT)
    ir.convenience.replace_all_uses_with(value, rounded, replace_graph_outputs=True)
    narrow.replace_input_with(0, value)
    node.graph.insert_after(node, [narrow, wide])


def emulated_bundle(bundle: Bundle, directory: Path) -> Bundle:
    """Write a bundle in float32 that computes the same numbers as a 16-bit bundle.

    Args:
        directory: an empty directory; the manifest's precision stays unchanged
    """
    known = bundle.manifest.model_graphs
    graphs = {name: load_graph(bundle.graph_path(name)) for name in known}
    for model in graphs.values():
        emulate_half(model)
    specs = {name: in_float32(spec) for name, spec in known.items()}
    files = ScratchWriter(directory)
    write_graphs(graphs, specs, files)
    files.copy_tokenizers(bundle)
    return files.finish(replace(bundle.manifest, graphs=specs))


def in_float32(graph: GraphSpec, narrow: Collection[str] = ("float16", "bfloat16")) -> GraphSpec:
    """Return the specification of a graph in which these number formats became float32."""

    def wide(tensor: TensorSpec) -> TensorSpec:
        return replace(tensor, dtype="float32") if tensor.dtype in narrow else tensor

    return graph.map(wide)
