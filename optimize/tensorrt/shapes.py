"""The decoder step that engines are built from: one token per step, caches of a fixed capacity."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from dragoman.runtime.format.contract import GraphSpec, TensorSpec

from ..graph_pass import ROUNDING, Changes, Property
from ..tidy import Tidy


@dataclass(frozen=True)
class PinShapes:
    """Replaces dynamic axes by constants, and folds the shape computations that follow from them.

    TensorRT updates caches in place only if their capacity is static, and has an attention kernel
    for exactly one query, which self-attention gets.

    Attributes:
        spec: the specification of the graph, which names the axes of its inputs and outputs
        sizes: size of each axis to pin, by its name in the contract
    """

    spec: GraphSpec
    sizes: Mapping[str, int]
    name: str = "pin-shapes"
    requires: frozenset[Property] = frozenset()
    ensures: frozenset[Property] = frozenset()
    tolerance: float = ROUNDING

    def apply(self, model: ir.Model) -> Changes:
        """Matches are tensors of the contract whose axes are now pinned."""
        pinned = pinned_spec(self.spec, self.sizes)
        values = {value.name: value for value in (*model.graph.inputs, *model.graph.outputs)}
        for tensor in (*pinned.inputs, *pinned.outputs):
            values[tensor.name].shape = ir.Shape(tensor.shape)
        for node in model.graph:
            for value in node.outputs:
                if not value.is_graph_output():
                    value.shape = None  # to be inferred again
        ShapeInferencePass()(model)
        Tidy().apply(model)
        before = (*self.spec.inputs, *self.spec.outputs)
        after = (*pinned.inputs, *pinned.outputs)
        return Changes(sum(a != b for a, b in zip(after, before, strict=True)))


def pinned_spec(spec: GraphSpec, sizes: Mapping[str, int]) -> GraphSpec:
    """The specification of a graph with sizes in place of the names of axes."""

    def pinned(tensor: TensorSpec) -> TensorSpec:
        shape = tuple(sizes.get(d, d) if isinstance(d, str) else d for d in tensor.shape)
        return dataclasses.replace(tensor, shape=shape)

    return spec.map(pinned)
