"""The exporter's output -> the neutral graph: weights get names, redundant nodes are removed.

1. Weights get the names of the checkpoint.
2. `nn.Linear` keeps [out, in] and exports a Transpose before each MatMul: weights without other
   uses are stored as [in, out] instead, under the same name. A tied embedding keeps its Transpose
   and is stored once.
3. Constant folding, common-subexpression and dead-node elimination; weights are not folded.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import (
    CommonSubexpressionEliminationPass,
    IdentityEliminationPass,
    LiftConstantsToInitializersPass,
    RemoveUnusedNodesPass,
)
from onnx_ir.tensor_adapters import TorchTensor
from onnxscript import optimizer
from torch import Tensor, nn

from dragoman.origins import ORIGIN


def simplify(graph: ir.Model, model: nn.Module) -> None:
    """Simplify an exported graph in place. `model` is the module it was exported from."""
    name_weights(graph, model)
    transpose_weights(graph)
    weights = {name for name, _ in _tensors(model)}
    optimizer.optimize_ir(graph, should_fold=lambda node: _may_fold(node, weights))
    passes = ir.passes.Sequential(
        LiftConstantsToInitializersPass(),
        CommonSubexpressionEliminationPass(),
        IdentityEliminationPass(),
        RemoveUnusedNodesPass(),
    )
    passes(graph)
    graph.graph.metadata_props.clear()
    for value in (*graph.graph.inputs, *graph.graph.outputs):
        value.metadata_props.clear()
    for node in graph.graph:
        origin = node.metadata_props.get(ORIGIN)
        node.metadata_props.clear()
        if origin is not None:
            node.metadata_props[ORIGIN] = origin


def name_weights(graph: ir.Model, model: nn.Module) -> None:
    """Give every weight its name in the model; a tied weight gets the first of its names."""
    names = {tensor.data_ptr(): name for name, tensor in reversed(_tensors(model))}
    for value in list(graph.graph.initializers.values()):
        raw = getattr(value.const_value, "raw", None)
        if raw is not None and raw.data_ptr() in names:
            value.name = names[raw.data_ptr()]


def transpose_weights(graph: ir.Model) -> None:
    """Replace Transpose(weight) by the transposed weight if nothing else uses the weight."""
    for value in list(graph.graph.initializers.values()):
        users = [usage.node for usage in value.uses()]
        if not users or any(node.op_type != "Transpose" for node in users):
            continue
        assert isinstance(value.const_value, ir.TensorProtocol) and value.name is not None
        transposed = TorchTensor(value.const_value.raw.t(), name=value.name)
        value.const_value = transposed
        value.shape = transposed.shape
        for node in users:
            node.outputs[0].replace_all_uses_with(value)
            graph.graph.remove(node, safe=True)


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _may_fold(node: ir.Node, weights: set[str]) -> bool | None:
    """False for nodes that would turn a weight into an unnamed copy; None for the default rules."""
    return False if any(v is not None and v.name in weights for v in node.inputs) else None
