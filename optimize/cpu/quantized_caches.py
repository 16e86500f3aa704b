"""Self-attention caches in 8 bits: a quarter of the memory that every step reads.

`com.microsoft.GroupQueryAttention` rounds keys and values when it writes them, with one fixed scale
for each channel of each head (`k_quant_type` PER_CHANNEL), so that a row's caches depend on this
row alone. Where the products that compute keys and values stay in fp32, so do the caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from dragoman.runtime.format.manifest import Refusal

from ..graph_pass import Changes, GraphPass
from ..graph_values import new_weight, product
from ..precision.calibration import CalibrationBatch
from ..running import Runner, only_outputs

HEADROOM, HEADROOM_OF_RANDOM = 1.25, 2.0
"""The factors by which keys and values may exceed those observed on calibration data or on random
sources; beyond, they are clipped."""

PAST_KEY, PAST_VALUE = 3, 4
KEY_SCALE, VALUE_SCALE = 12, 13
PRESENT_KEY, PRESENT_VALUE = 1, 2
"""Indices of the operator's inputs and outputs."""

Magnitudes = dict[str, NDArray[np.float32]]
"""The largest magnitude of each channel, by the name of a value [..., channels]."""


@dataclass(frozen=True)
class QuantizedCaches(GraphPass):
    """The pass that quantizes caches."""

    largest: Magnitudes
    """The magnitudes that each attention can write into its caches."""
    tolerance: float
    name: str = "int8-caches"

    def apply(self, model: ir.Model) -> Changes:
        """Change the model in place."""
        matches, refusals = 0, []
        for node in model.graph:
            if node.op_type != "GroupQueryAttention":
                continue
            written = self._written(node)
            if isinstance(written, str):
                refusals.append(Refusal(node.name or "", node.op_type, written))
                continue
            _quantize(model.graph, node, *written)
            matches += 1
        return Changes(matches, tuple(refusals))

    def _written(self, node: ir.Node) -> tuple[NDArray[np.float32], NDArray[np.float32]] | str:
        if any(product(value) is not None for value in _sources(node)):
            return "its keys and values are computed in fp32"
        cache = node.inputs[PAST_KEY]
        assert cache is not None and cache.shape is not None
        known = [self.largest.get(value.name or "") for value in _sources(node)]
        parts = [part for part in known if part is not None and np.isfinite(part).all()]
        if len(parts) < len(known):
            return "expected keys and values that were observed to be finite"
        key, value = parts if len(parts) == 2 else np.split(parts[0], 3)[1:]
        heads = cache.shape[1]
        assert isinstance(heads, int)
        return key.reshape(heads, -1), value.reshape(heads, -1)


def largest_written(model: ir.Model, batches: Sequence[CalibrationBatch]) -> Magnitudes:
    """Run a decoder on batches and observe what it writes into caches, without padding."""
    nodes = [node for node in model.graph if node.op_type == "GroupQueryAttention"]
    names = sorted({value.name or "" for node in nodes for value in _sources(node)})
    largest: Magnitudes = {}
    if not names:
        return largest
    runner = Runner(only_outputs(model, names), threads=None)
    for batch in batches:
        outputs = runner.run(batch.samples)
        for name in names:
            found = np.abs(outputs[name][batch.rows]).max(axis=0).astype(np.float32)
            found *= HEADROOM_OF_RANDOM if batch.random else HEADROOM
            largest[name] = np.maximum(largest.get(name, found), found)
    return largest


def _sources(node: ir.Node) -> list[ir.Value]:
    query, key, value = node.inputs[:3]
    return [x for x in ([query] if key is None else [key, value]) if x is not None]


def _quantize(
    graph: ir.Graph, node: ir.Node, key: NDArray[np.float32], value: NDArray[np.float32]
) -> None:
    if len(node.inputs) <= VALUE_SCALE:
        node.resize_inputs(VALUE_SCALE + 1)
    for place, largest, side in ((KEY_SCALE, key, "key"), (VALUE_SCALE, value, "value")):
        scale = np.maximum(largest, np.float32(1e-30)) * np.float32(1 / 127)
        name = f"{node.name}.{side}_scale"
        node.replace_input_with(place, new_weight(graph, name, scale[None, :, None]))
    for attribute in ("k_quant_type", "v_quant_type"):
        node.attributes.add(ir.AttrString(attribute, "PER_CHANNEL"))
    node.attributes.add(ir.AttrInt64("kv_cache_bit_width", 8))
    past = (node.inputs[PAST_KEY], node.inputs[PAST_VALUE])
    for cache in (*past, node.outputs[PRESENT_KEY], node.outputs[PRESENT_VALUE]):
        assert cache is not None
        cache.type = ir.TensorType(ir.DataType.INT8)
