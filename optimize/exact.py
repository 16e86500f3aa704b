"""The exact form of a graph: the same computation without any rounding, in float32.

Weights that are integers become the numbers that they represent, nothing is rounded to integers or
to 16 bits, and caches hold float32. A quantization whose two sides disagree stays as wrong as it
is: every fault of a graph except rounding shows, at the tolerance of fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass

from dragoman.onnx_graphs.graph_files import load_graph
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.contract import SHORTLIST_GRAPHS
from dragoman.runtime.model import Model

from .checking.interface import remove_identities
from .dequantized import (
    QuantizedWeight,
    Reader,
    array,
    block_lookup,
    block_product,
    dequantized,
    lookup,
    product_of_integers,
    table_product,
)
from .emulation import Replacement, in_float32, own_weights, widen
from .graph_pass import PassError
from .graph_values import MICROSOFT, new_weight, producer, replace_by
from .precision.rounding import parts_of_outputs
from .running import InMemoryBackend

Array = NDArray[Any]
Float = NDArray[np.float32]
FLOAT = ir.DataType.FLOAT
QUANTIZED_CACHE = ("k_quant_type", "v_quant_type", "kv_cache_bit_width")
CACHE_INPUTS = slice(3, 5)
SCALE_INPUTS = slice(12, 14)
NUMBERS_AT_ONCE = 2**22


def make_exact(model: ir.Model, replacement: Replacement = own_weights) -> None:
    """Turn a graph into its exact form, in place.

    Args:
        replacement: returns the numbers to use for weights that are integers or 16-bit numbers
    """
    graph = model.graph
    for node in list(graph):
        change = _CHANGES.get((node.domain, node.op_type))
        if change is not None:
            change(graph, node, replacement)
    widen(model, replacement)
    remove_identities(model)
    RemoveUnusedNodesPass()(model)


def exact_model(
    bundle: Bundle, replacement: Replacement = own_weights, threads: int | None = None
) -> Model:
    """Return the exact form of a bundle of graphs, in fp32, on ONNX Runtime, in memory."""
    left_out = {"candidates", *SHORTLIST_GRAPHS}
    known = {n: spec for n, spec in bundle.manifest.graphs.items() if n not in left_out}
    graphs = {name: load_graph(bundle.graph_path(name)) for name in known}
    for name, model in graphs.items():
        try:
            make_exact(model, replacement)
        except Exception as error:  # a wrong graph may raise any exception
            raise PassError(f"{name}: {type(error).__name__}: {error}") from error
    narrow = ("float16", "bfloat16", "int8")
    specs = {name: in_float32(spec, narrow) for name, spec in known.items()}
    manifest = replace(bundle.manifest, graphs=specs, precision="fp32", shortlist=None)
    exact = replace(bundle, manifest=manifest)
    return Model(exact, InMemoryBackend(exact, graphs, threads))


def _numbers(weight: QuantizedWeight, replacement: Replacement) -> Float:
    new = replacement(weight.name, weight)
    return np.asarray(weight if new is None else new, np.float32)


def _exact_input(places: tuple[int, int, int], graph: ir.Graph, node: ir.Node) -> list[ir.Node]:
    integers = node.inputs[places[0]]
    reshape = producer(integers, "Reshape")
    quantize = producer(integers if reshape is None else reshape.inputs[0], "QuantizeLinear")
    assert quantize is not None
    x, divided, added = quantize.inputs[0], array(quantize, 1), array(quantize, 2)
    multiplied, subtracted = array(node, places[1]), array(node, places[2])
    assert x is not None and divided is not None and multiplied is not None
    factor = np.float64(multiplied.item()) / np.float64(divided.item())
    zeros = (np.float64(0 if zero is None else zero.item()) for zero in (added, subtracted))
    offset = (next(zeros) - next(zeros)) * np.float64(multiplied.item())
    nodes = [ir.node("Identity", [x])]
    for operator, name, number, neutral in (
        ("Mul", "factor", factor, 1),
        ("Add", "offset", offset, 0),
    ):
        if number != neutral:
            other = new_weight(graph, f"{name}_{number:.9g}", np.array(number, np.float32))
            nodes.append(ir.node(operator, [nodes[-1].outputs[0], other]))
    if reshape is not None:
        nodes.append(ir.node("Reshape", [nodes[-1].outputs[0], reshape.inputs[1]]))
    return nodes


def _multiply_exactly(
    read: Reader,
    exact_input: Callable[[ir.Graph, ir.Node], list[ir.Node]],
    bias: int,
    graph: ir.Graph,
    node: ir.Node,
    replacement: Replacement,
) -> None:
    weight = read(node)
    if weight is None:
        return
    nodes, numbers = exact_input(graph, node), _numbers(weight, replacement)
    x = nodes[-1].outputs[0]
    if numbers.T.flags.c_contiguous:  # the checkpoint's own memory, without a copy
        rows = new_weight(graph, f"{weight.name}.exact_rows", numbers.T)
        nodes.append(ir.node("FusedMatMul", [x, rows], {"transB": 1}, domain=MICROSOFT))
        graph.opset_imports.setdefault(MICROSOFT, 1)
    else:
        own = new_weight(graph, f"{weight.name}.exact", np.ascontiguousarray(numbers))
        nodes.append(ir.node("MatMul", [x, own]))
    added = node.inputs[bias] if len(node.inputs) > bias else None
    if added is not None:
        nodes.append(ir.node("Add", [nodes[-1].outputs[0], added]))
    replace_by(graph, node, nodes)


def _look_up_exactly(graph: ir.Graph, node: ir.Node, replacement: Replacement) -> None:
    """Keep the cast and the product by the scales; rows are divided by the table's scales."""
    weight, ids = lookup(node), node.inputs[1]
    if weight is None or ids is None:
        return
    rows = np.ascontiguousarray(_numbers(weight, replacement).T)
    table = new_weight(graph, f"{weight.name}.exact_rows", rows)
    steps = new_weight(graph, f"{weight.name}.exact_steps", _steps_of_rows(weight, weight.shape[0]))
    gathered = [ir.node("Gather", [values, ids]) for values in (table, steps)]
    units = ir.node("Div", [each.outputs[0] for each in gathered])
    units.outputs[0].type = ir.TensorType(FLOAT)
    replace_by(graph, node, [*gathered, units])


def _steps_of_rows(weight: QuantizedWeight, block: int) -> Float:
    parts = parts_of_outputs(weight.shape, NUMBERS_AT_ONCE)
    return np.concatenate([weight.read(part).step[::block].T for part in parts])


def _look_up_blocks_exactly(graph: ir.Graph, node: ir.Node, replacement: Replacement) -> None:
    """Divide blocks by the table's scales, multiply by the node's; a fault makes them differ."""
    weight, ids, scales = block_lookup(node), node.inputs[1], node.inputs[2]
    if weight is None or ids is None or scales is None:
        return
    block = node.attributes.get_int("block_size", 128)
    rows = np.ascontiguousarray(_numbers(weight, replacement).T)
    steps = _steps_of_rows(weight, block)[..., None]
    blocks = rows.reshape(len(rows), -1, block)
    given = (
        new_weight(graph, f"{weight.name}.exact_blocks", blocks),
        new_weight(graph, f"{weight.name}.exact_steps", np.ascontiguousarray(steps)),
        scales,
    )
    gathered = [ir.node("Gather", [values, ids]) for values in given]
    units = ir.node("Div", [gathered[0].outputs[0], gathered[1].outputs[0]])
    product = ir.node("Mul", [units.outputs[0], gathered[2].outputs[0]])
    replace_by(graph, node, [*gathered, units, product])


def _dequantize_exactly(graph: ir.Graph, node: ir.Node, replacement: Replacement) -> None:
    weight = dequantized(node)
    if weight is None:  # of an input, which is rounded for a product
        if producer(node.inputs[0], "QuantizeLinear") is not None:
            replace_by(graph, node, _exact_input((0, 1, 2), graph, node))
        return
    numbers = _numbers(weight, replacement)
    numbers = np.ascontiguousarray(numbers.T if weight.table else numbers)
    value = new_weight(graph, f"{weight.name}.exact", numbers)
    replace_by(graph, node, [ir.node("Identity", [value])])


def _cache_exactly(graph: ir.Graph, node: ir.Node, replacement: Replacement) -> None:
    """Turn the 8-bit caches of `GroupQueryAttention` into float32; two inputs are scales."""
    if "kv_cache_bit_width" not in node.attributes:
        return
    for name in QUANTIZED_CACHE:
        node.attributes.pop(name, None)
    for index in range(*SCALE_INPUTS.indices(len(node.inputs))):
        node.replace_input_with(index, None)
    for value in (*node.inputs[CACHE_INPUTS], *node.outputs[1:3]):
        if value is None:
            continue
        value.type = ir.TensorType(FLOAT)
        empty = producer(value, "ConstantOfShape")
        if empty is not None:  # no cached positions, as in the graph that shows attention
            empty.attributes["value"] = ir.AttrTensor("value", ir.tensor(np.zeros(1, np.float32)))


_CHANGES: Mapping[tuple[str, str], Callable[[ir.Graph, ir.Node, Replacement], None]] = {
    (MICROSOFT, "MatMulIntegerToFloat"): partial(
        _multiply_exactly, product_of_integers, partial(_exact_input, (0, 2, 4)), 6
    ),
    (MICROSOFT, "QGemm"): partial(
        _multiply_exactly, table_product, partial(_exact_input, (0, 1, 2)), 6
    ),
    (MICROSOFT, "MatMulNBits"): partial(
        _multiply_exactly,
        block_product,
        lambda graph, node: [ir.node("Identity", [node.inputs[0]])],
        5,
    ),
    (MICROSOFT, "GatherBlockQuantized"): _look_up_blocks_exactly,
    (MICROSOFT, "GroupQueryAttention"): _cache_exactly,
    ("", "Gather"): _look_up_exactly,
    ("", "DequantizeLinear"): _dequantize_exactly,
}
