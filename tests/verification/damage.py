"""Damage to the weights of a quantized bundle for the target `cpu`, which loads and runs as before.

Its weights are `NAME.int8`, int8 [inputs, outputs], in 7 bits, with `NAME.scale` [outputs]; or
`NAME.int4`, uint8 [outputs, blocks, 16], 32 inputs a block, two in a byte, the first in the lower
half, each 8 more than its value; with `NAME.scale` [outputs, blocks].
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from dragoman.onnx_graphs.graph_files import write_graphs
from dragoman.runtime import Bundle
from dragoman.runtime.format.writing import ScratchWriter

Damage = Callable[[str, NDArray[Any]], NDArray[Any] | None]
"""The name and the value of an initializer -> the value in its place; None: it stays."""


def scales_off(layer: str, factor: float) -> Damage:
    """All scales of a Transformer layer, such as "decoder.layers.1"."""

    def damage(name: str, value: NDArray[Any]) -> NDArray[Any] | None:
        of_layer = name.startswith(f"{layer}.") and name.endswith(".scale")
        return value * np.float32(factor) if of_layer else None

    return damage


def head_zeroed(attention: str, head: int, size: int) -> Damage:
    """What the output projection of an attention reads of one head."""
    inputs = slice(head * size, (head + 1) * size)

    def damage(name: str, value: NDArray[Any]) -> NDArray[Any] | None:
        if not name.startswith(f"{attention}.output.weight.int"):
            return None
        if name.endswith(".int8"):
            rows = value.copy()
            rows[inputs] = 0
            return rows
        integers = unpacked(value)
        integers[:, inputs] = 0
        return packed(integers, value.shape)

    return damage


def three_bits(name: str, value: NDArray[Any]) -> NDArray[Any] | None:
    """Every weight rounded to the nearest of seven values."""
    if name.endswith(".int8"):
        return (np.rint(value / 21.0) * 21).astype(np.int8)
    if name.endswith(".int4"):
        return packed(np.clip(np.rint(unpacked(value) / 2) * 2, -6, 6).astype(np.int8), value.shape)
    return None


def unpacked(value: NDArray[np.uint8]) -> NDArray[np.int8]:
    """[outputs, blocks, bytes] -> [outputs, inputs]"""
    both = np.stack([value & 15, value >> 4], axis=-1).astype(np.int8) - np.int8(8)
    return both.reshape(len(value), -1)


def packed(integers: NDArray[np.int8], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    both = (integers + 8).astype(np.uint8).reshape(*shape, 2)
    packed_pairs: NDArray[np.uint8] = both[..., 0] | (both[..., 1] << np.uint8(4))
    return packed_pairs


def damaged(bundle: Bundle, directory: Path, damage: Damage) -> Bundle:
    """A damaged copy, in an empty directory."""
    graphs = {name: ir.load(bundle.graph_path(name)) for name in bundle.manifest.graphs}
    changes = 0
    for graph in graphs.values():
        for name, value in graph.graph.initializers.items():
            assert value.const_value is not None
            changed = damage(name, value.const_value.numpy())
            if changed is not None:
                changes += not np.array_equal(changed, value.const_value.numpy())
                value.const_value = ir.tensor(changed, name=name)
    assert changes, "the damage changed nothing"
    files = ScratchWriter(directory)
    write_graphs(graphs, bundle.manifest.graphs, files)
    files.copy_tokenizers(bundle)
    return files.finish(bundle.manifest)
