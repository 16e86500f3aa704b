"""The inputs and outputs of a graph, which passes may not change.

A pass that finds one value to be another may let a graph return one value twice, or let a branch
return a value from outside. Neither is valid ONNX, so that an Identity has to stay there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ..graph_pass import PassError
from ..graph_values import name_uniquely


@dataclass(frozen=True)
class Port:
    """An input or an output of a graph."""

    name: str | None
    type: ir.TypeProtocol | None
    shape: ir.Shape | None
    metadata: Mapping[str, str]
    description: str | None


@dataclass(frozen=True)
class Interface:
    """The inputs and outputs of a graph, in order."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def read_interface(model: ir.Model) -> Interface:
    """Return the interface of a graph."""
    graph = model.graph
    return Interface(tuple(map(_port, graph.inputs)), tuple(map(_port, graph.outputs)))


def _port(value: ir.Value) -> Port:
    shape = None if value.shape is None else value.shape.copy(frozen=True)
    return Port(value.name, value.type, shape, dict(value.metadata_props), value.doc_string)


def keep_interface(model: ir.Model, interface: Interface) -> None:
    """Give a graph's outputs their names again, and check number, names and types.

    Outputs of subgraphs become values that the subgraph computes itself, each once.
    """
    for graph in model.graphs():
        if graph is not model.graph:
            _separate_outputs(graph)
    name_uniquely(model)
    names = [value.name for value in model.graph.outputs]
    if set(names) != {port.name for port in interface.outputs}:  # exchanged ones are not renamed
        _name_outputs(model.graph, interface.outputs)
    for what, ports, values in (
        ("input", interface.inputs, model.graph.inputs),
        ("output", interface.outputs, model.graph.outputs),
    ):
        names = [value.name for value in values]
        expected = [port.name for port in ports]
        if names != expected:
            raise PassError(f"expected the {what}s {expected}, found {names}")
        for port, value in zip(ports, values, strict=True):
            if port.type is not None and value.type not in (None, port.type):
                raise PassError(
                    f"expected {what} {port.name} of type {port.type}, found {value.type}"
                )
            value.type = port.type or value.type


def keep_declarations(model: ir.Model, interface: Interface) -> None:
    """Declare inputs and outputs as they were, with shapes, names of axes and metadata."""
    graph = model.graph
    for ports, values in ((interface.inputs, graph.inputs), (interface.outputs, graph.outputs)):
        for port, value in zip(ports, values, strict=True):
            value.shape = None if port.shape is None else port.shape.copy(frozen=False)
            value.doc_string = port.description
            value.metadata_props.clear()
            value.metadata_props.update(port.metadata)


def remove_identities(model: ir.Model) -> None:
    """Remove Identity nodes, except those that an output of a graph or a branch needs."""
    graphs: list[ir.Graph | ir.Function] = [*model.graphs(), *model.functions.values()]
    for graph in graphs:
        for node in list(graph):
            if node.op_type != "Identity" or node.domain or len(node.inputs) != 1:
                continue
            source, result = node.inputs[0], node.outputs[0]
            if source is None or (result.is_graph_output() and not _movable(source, graph)):
                continue
            if result.is_graph_output():
                source.name = result.name
            if source.type is None:
                source.type = result.type
            if source.shape is None or (
                result.shape is not None and _known(result.shape) > _known(source.shape)
            ):
                source.shape = result.shape
            ir.convenience.replace_all_uses_with(result, source, replace_graph_outputs=True)
            graph.remove(node, safe=True)


def _movable(value: ir.Value, graph: ir.Graph | ir.Function) -> bool:
    node = value.producer()
    return node is not None and node.graph is graph and not value.is_graph_output()


def _known(shape: ir.Shape) -> int:
    return sum(isinstance(size, int) or size.value is not None for size in shape)


def _separate_outputs(graph: ir.Graph) -> None:
    seen: set[ir.Value] = set()
    for index, value in enumerate(graph.outputs):
        node = value.producer()
        own = value.is_graph_input() or value.is_initializer() or node is not None
        inside = value.graph is graph or (node is not None and node.graph is graph)
        if value in seen or not (own and inside):
            graph.outputs[index] = _copy(graph, value, f"{value.name}.output{index}")
        seen.add(value)


def _name_outputs(graph: ir.Graph, ports: tuple[Port, ...]) -> None:
    values = list(graph.outputs)
    if len(values) != len(ports):
        return
    right = {v for v, port in zip(values, ports, strict=True) if v.name == port.name}
    taken: dict[str | None, ir.Value] = {}
    for index, (value, port) in enumerate(zip(values, ports, strict=True)):
        if value.name == port.name:
            continue
        if not taken:
            taken = ir.convenience.create_value_mapping(graph)  # type: ignore[assignment]
        other = taken.get(port.name)
        if other is not None and other not in right and not other.is_graph_input():
            other.name = f"{port.name}.inner"
        node = value.producer()
        if value in right or node is None or node.graph is not graph:
            graph.outputs[index] = _copy(graph, value, port.name)
        else:
            value.name = port.name
            right.add(value)


def _copy(graph: ir.Graph, value: ir.Value, name: str | None) -> ir.Value:
    node = ir.node("Identity", [value])
    graph.append(node)
    (result,) = node.outputs
    result.name, result.type = name, value.type
    result.shape = None if value.shape is None else value.shape.copy(frozen=False)
    return result
