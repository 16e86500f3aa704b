"""Which branches and loop bodies of a graph samples execute.

A count leaves its subgraph as one more output of the If, Loop or Scan: zero from the branch that
is not taken, and a sum over iterations.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass, RemoveUnusedNodesPass

from ..graph_pass import PassError
from ..running import Runner, Samples

CONTROL = frozenset({"If", "Loop", "Scan"})


def has_branches(model: ir.Model) -> bool:
    """Return whether a graph or one of its functions has subgraphs that may not be executed."""
    containers: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    return any(n.op_type in CONTROL for container in containers for n in container.all_nodes())


class Branches:
    """The subgraphs of a graph that are executed on samples.

    Attributes:
        names: a description of each, such as "else_branch of If choice"
    """

    def __init__(self, model: ir.Model) -> None:
        counting = model.clone()
        InlinePass()(counting)
        counts = _count(counting.graph)
        self._keys: dict[str, str] = {}
        for index, (name, value) in enumerate(counts):
            value.name = f"executed.{index}"
            known = name in self._keys.values()
            self._keys[value.name] = f"{name} ({index})" if known else name
        self.names = frozenset(self._keys.values())
        counting.graph.outputs[:] = [value for _, value in counts]
        RemoveUnusedNodesPass()(counting)
        self._runner = Runner(counting)

    def executed(self, samples: Samples, *, seconds: float | None = None) -> frozenset[str]:
        """Return the names of the subgraphs that samples execute."""
        counts = self._runner.run(samples, seconds=seconds)
        return frozenset(self._keys[key] for key, count in counts.items() if count.sum() > 0)


def not_executed(model: ir.Model, sets: Sequence[Samples]) -> tuple[str, ...]:
    """Return the names of the subgraphs that no set of samples executes."""
    if not has_branches(model):
        return ()
    try:
        branches = Branches(model)
        executed = list(map(branches.executed, sets))
    except PassError as error:
        return (f"unknown branches, which cannot be counted: {error}",)
    return tuple(sorted(branches.names.difference(*executed)))


def _count(graph: ir.Graph) -> list[tuple[str, ir.Value]]:
    counts: list[tuple[str, ir.Value]] = []
    for node in list(graph):
        bodies = {
            attribute.name: attribute.as_graph()
            for attribute in node.attributes.values()
            if attribute.type is ir.AttributeType.GRAPH
        }
        if node.op_type not in CONTROL or node.domain or not bodies:
            continue
        label = node.name or next((o.name for o in node.outputs if o.name), "")
        inner = {
            name: [(f"{name} of {node.op_type} {label}", _number(body, 1)), *_count(body)]
            for name, body in bodies.items()
        }
        added = sum(map(len, inner.values()))
        for name, body in bodies.items():
            for other, values in inner.items():
                body.outputs.extend(v if other == name else _number(body, 0) for _, v in values)
        first = len(node.outputs)
        node.resize_outputs(first + added)
        results = node.outputs[first:]
        for value in results:  # any other name may be taken
            value.name = f"executed.raw.{graph.name}.{id(value)}"
        for axes in ("scan_output_axes", "scan_output_directions"):
            if axes in node.attributes:
                known = list(node.attributes[axes].as_ints())
                node.attributes[axes] = ir.AttrInt64s(axes, [*known, *[0] * added])
        if node.op_type != "If":
            sums = [ir.node("ReduceSum", [value], {"keepdims": 0}) for value in results]
            graph.insert_after(node, sums)
            results = tuple(n.outputs[0] for n in sums)
        for value in results:
            value.name = f"executed.{graph.name}.{id(value)}"
        names = [name for values in inner.values() for name, _ in values]
        for name, value in zip(names, results, strict=True):
            value.type, value.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([])
            counts.append((name, value))
    return counts


def _number(graph: ir.Graph, number: int) -> ir.Value:
    node = ir.node("Constant", [], {"value": ir.tensor(np.array(number, np.int64))})
    graph.append(node)
    (value,) = node.outputs
    value.name = f"executed.{graph.name}.{id(value)}"
    value.type, value.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([])
    return value
