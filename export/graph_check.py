"""The check of exported graphs against the graph contract. A breach is a bug in the exporter."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir

from dragoman.errors import DragomanError

from .exporter import ExportedGraph
from .graphs import OPSET


class ContractError(DragomanError):
    """An exported graph breaks the contract; lists every breach."""

    def __init__(self, name: str, problems: list[str]) -> None:
        super().__init__(f"the exported {name} graph breaks the contract", problems)


def check_graph(exported: ExportedGraph, name: str) -> None:
    """Check the operators, inputs, outputs and caches of a graph.

    Raises:
        ContractError: the graph has an operator outside the default domain, another opset, an input
            or output that is unused, unnamed or not as specified, or a cache that is not updated in
            place.
    """
    model = exported.model
    problems = [
        f"node {node.name} is {node.domain}::{node.op_type}, outside the default domain"
        for node in model.graph.all_nodes()
        if node.domain not in ("", "ai.onnx")
    ]
    if model.opset_imports.get("") != OPSET:
        problems.append(f"expected opset {OPSET}, found {dict(model.opset_imports)}")
    if len(model.functions):
        problems.append(f"expected no local functions, found {list(model.functions)}")
    wrong_counts = [
        f"expected {len(specs)} {side}, found {len(values)}"
        for side, values, specs in (
            ("inputs", model.graph.inputs, exported.spec.inputs),
            ("outputs", model.graph.outputs, exported.spec.outputs),
        )
        if len(values) != len(specs)
    ]
    if wrong_counts:
        raise ContractError(name, problems + wrong_counts)
    for value, spec in zip(model.graph.inputs, exported.spec.inputs, strict=True):
        problems += _differences(value, spec.name, spec.shape)
        if not value.uses():
            problems.append(f"input {value.name} is not used")
    for value, spec in zip(model.graph.outputs, exported.spec.outputs, strict=True):
        problems += _differences(value, spec.name, spec.shape)
        if value.producer() is None:
            problems.append(f"output {value.name} is not computed")
    problems += _caches_not_in_place(exported)
    if problems:
        raise ContractError(name, problems)


def check_file(path: Path, name: str) -> None:
    """Run `onnx.checker` with full shape inference on the written file."""
    try:
        onnx.checker.check_model(path, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ContractError(name, [f"onnx.checker: {error}"]) from error


def _differences(value: ir.Value, name: str, shape: tuple[int | str, ...]) -> list[str]:
    problems = []
    if value.name != name:
        problems.append(f"expected name {name}, found {value.name}")
    if value.shape is None:
        return [*problems, f"{name} has no shape"]
    found = tuple(d if isinstance(d, int) else d.value for d in value.shape)
    if found != shape or None in found:
        problems.append(f"{name}: expected shape {list(shape)}, found {list(found)}")
    return problems


def _caches_not_in_place(exported: ExportedGraph) -> list[str]:
    """Return a problem for each output that updates an input without TensorScatter.

    A runtime can bind input and output to one address only with TensorScatter.
    """
    inputs = {spec.name: spec.slot for spec in exported.spec.inputs}
    problems = []
    for value, spec in zip(exported.model.graph.outputs, exported.spec.outputs, strict=True):
        if spec.memory == spec.slot:
            continue
        node = value.producer()
        cache = node.inputs[0] if node is not None and node.op_type == "TensorScatter" else None
        if cache is None or inputs.get(cache.name or "") != spec.memory:
            problems.append(f"{spec.name} is not TensorScatter of {spec.memory}")
    return problems
