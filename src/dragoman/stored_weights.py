"""The weights of both graphs in one file, each tensor once, tied or equal ones shared."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

WEIGHTS_FILE = "weights.bin"
INLINE_BYTES = 1024
"""Tensors up to this size stay in the graph's own file."""


def store_weights(graphs: Sequence[ir.Model], directory: Path) -> None:
    """Write all large initializers of the graphs to one file and make the graphs refer to it.

    Tensors that hold the same bytes are stored once, whichever graph and name they belong to.
    """
    values = [
        value
        for graph in graphs
        for value in graph.graph.initializers.values()
        if value.const_value is not None and value.const_value.nbytes > INLINE_BYTES
    ]
    unique: dict[tuple[object, ...], ir.TensorProtocol] = {}
    keys = []
    for value in values:
        tensor = value.const_value
        assert tensor is not None
        digest = hashlib.sha256(tensor.tobytes()).digest()
        keys.append((tensor.dtype, tuple(tensor.shape), digest))
        unique.setdefault(keys[-1], tensor)
    stored = ir.external_data.convert_tensors_to_external(
        list(unique.values()), directory, WEIGHTS_FILE
    )
    external = dict(zip(unique, stored, strict=True))
    for value, key in zip(values, keys, strict=True):
        tensor = external[key]
        value.const_value = ir.ExternalTensor(
            tensor.location,
            tensor.offset,
            tensor.length,
            tensor.dtype,
            shape=tensor.shape,
            name=value.name or "",
            base_dir=directory,
        )
