"""The values of a graph as passes need them: constants, weights, products and their producers."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import ShapeInferencePass

MICROSOFT = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""


class Product(NamedTuple):
    """The product x @ weight [in, out] + bias [out]; the bias may be missing."""

    x: ir.Value
    weight: ir.Value
    bias: ir.Value | None


def constant(value: ir.Value | None) -> NDArray[np.generic] | None:
    """Return the array of a constant or initializer; None if the value depends on an input."""
    if value is None or value.is_graph_input():
        return None
    tensor = value.const_value
    if tensor is None:
        node = value.producer()
        if node is None or node.op_type != "Constant" or node.domain:
            return None
        tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else np.asarray(tensor.numpy())


def number(value: ir.Value | None) -> float | None:
    """Return the number of a constant of one element; None if the value is anything else."""
    array = constant(value)
    if array is None or array.size != 1 or array.dtype.kind not in "fiuV":
        return None
    return float(array.astype(np.float64).item())


def floats(value: ir.Value) -> NDArray[np.float32]:
    """Return a weight as a float32 array."""
    numbers = constant(value)
    assert numbers is not None
    return np.asarray(numbers, np.float32)


def is_weight(value: ir.Value | None, rank: int) -> bool:
    """Return whether a value is an initializer of this rank."""
    return (
        value is not None
        and value.is_initializer()
        and value.const_value is not None
        and len(value.const_value.shape) == rank
    )


def product(value: ir.Value | None) -> Product | None:
    """Return a value as the product of an input and a weight; None if it is anything else."""
    node = None if value is None else value.producer()
    bias = None
    if node is not None and node.op_type == "Add":
        for x, other in (node.inputs, reversed(node.inputs)):
            if is_weight(other, 1) and x is not None:
                bias, node = other, x.producer()
                break
    if node is None or node.op_type != "MatMul" or not is_weight(node.inputs[1], 2):
        return None
    assert node.inputs[0] is not None and node.inputs[1] is not None
    return Product(node.inputs[0], node.inputs[1], bias)


def producer(value: ir.Value | None, *operators: str) -> ir.Node | None:
    """Return the node that computes a value, if it is one of these standard ONNX operators."""
    node = value.producer() if value is not None else None
    return node if node is not None and not node.domain and node.op_type in operators else None


def made_by(value: ir.Value) -> ir.Node:
    """Return the node that computes a value, which is no input and no weight."""
    node = value.producer()
    assert node is not None
    return node


def users(value: ir.Value) -> list[ir.Node]:
    """Return the nodes that read a value."""
    return [usage.node for usage in value.uses()]


def new_weight(graph: ir.Graph, name: str, numbers: NDArray[np.generic]) -> ir.Value:
    """Add an initializer to a graph, or return the one that has this name."""
    if name in graph.initializers:
        return graph.initializers[name]
    tensor = ir.tensor(numbers, name=name)
    value = ir.Value(
        name=name,
        shape=ir.Shape(numbers.shape),
        type=ir.TensorType(tensor.dtype),
        const_value=tensor,
    )
    graph.register_initializer(value)
    return value


def folded_weight(op: Any, name: str, numbers: NDArray[np.generic]) -> ir.Value:
    """Make an initializer in the replacement of a rewrite rule."""
    value: ir.Value = op.initializer(ir.tensor(numbers, name=name), name=name)
    return value


def replace_by(graph: ir.Graph, node: ir.Node, nodes: list[ir.Node]) -> None:
    """Replace a node by others; the last one computes its output, under the same name."""
    old, new = node.outputs[0], nodes[-1].outputs[0]
    for made in nodes:
        made.metadata_props.update(node.metadata_props)
    graph.insert_before(node, nodes)
    new.shape, new.type = old.shape, old.type
    name = old.name
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    old.name, new.name = f"{name}.before", name
    graph.remove(node, safe=True)


def infer_shapes(model: ir.Model) -> None:
    """Infer types and shapes, also within branches."""
    name_uniquely(model)
    ShapeInferencePass()(model)


def name_uniquely(model: ir.Model) -> None:
    """Give values of subgraphs names that occur once in the model.

    Both branches of an If may use the same names, but ONNX's inference refuses the second.
    """
    used: set[str | None] = set()
    for graph in model.graphs():
        nodes = (value for node in graph for value in node.outputs)
        values = dict.fromkeys((*graph.inputs, *graph.initializers.values(), *nodes))
        for index, value in enumerate(values):
            if value.name and value.name in used:
                value.name = f"{value.name}.{graph.name}.{index}"
            used.add(value.name)


FLOATS = frozenset(
    {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}
)


class UnsupportedPatternError(Exception):
    """A fusion does not support a pattern in the graph; says what was expected and found."""


def is_number(value: ir.Value | None, expected: float, *, relative: float = 1e-4) -> bool:
    """Return whether a value is this constant, within the rounding of exporters."""
    actual = number(value)
    return actual is not None and math.isclose(actual, expected, rel_tol=relative)


def first_input(node: ir.Node) -> ir.Value:
    """Return the first input of a node."""
    value = node.inputs[0]
    if value is None:
        raise UnsupportedPatternError(f"{node.op_type} {node.name or ''} without its first input")
    return value


def split_constant(node: ir.Node) -> tuple[ir.Value, float] | None:
    """Return the variable and the constant number of a node with two inputs, in either order."""
    for value, other in (node.inputs[:2], node.inputs[1::-1]):
        constant_number = number(other)
        if value is not None and constant_number is not None and number(value) is None:
            return value, constant_number
    return None


def rank(value: ir.Value) -> int | None:
    """Return the number of axes; None if unknown."""
    return len(value.shape) if value.shape is not None else None


def last_size(value: ir.Value | None) -> int | None:
    """Return the size of the last axis; None if unknown."""
    shape = None if value is None else value.shape
    return shape[-1] if shape is not None and isinstance(shape[-1], int) else None


def permutation(node: ir.Node) -> tuple[int, ...]:
    """Return the order of axes that a Transpose states; empty if it states none."""
    return tuple(node.attributes["perm"].as_ints()) if "perm" in node.attributes else ()


def reduction_axes(node: ir.Node) -> list[int] | None:
    """Return the axes of a reduction: an attribute or, since opset 18, an input."""
    attribute = node.attributes.get("axes")
    if attribute is not None:
        return list(attribute.as_ints())
    array = constant(node.inputs[1]) if len(node.inputs) > 1 else None
    return None if array is None else list(map(int, array.ravel()))


def describe(value: ir.Value | None) -> str:
    """Describe a value for the reasons of refusals."""
    if value is None:
        return "nothing"
    if (constant_number := number(value)) is not None:
        return f"the number {constant_number:g}"
    shape = "unknown shape" if value.shape is None else f"shape {value.shape}"
    node = value.producer()
    return f"{value.name} ({node.op_type if node is not None else 'an input'}, {shape})"
