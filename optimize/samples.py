"""Inputs to try a graph on: valid for what each is, ragged where there are masks, seeded."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from dragoman.runtime.format.manifest import GraphSpec, ModelSpec

from .graph_pass import PassError
from .graph_values import constant
from .graph_values import is_weight as weight

Samples = Mapping[str, NDArray[np.generic]]
"""One value for each input of a graph."""

AXES = {"batch": 3, "source": 5, "query": 1, "capacity": 9}
"""Sizes of the contract's dynamic axes: small, odd, unlike each other."""


def samples_for_graph(spec: GraphSpec, facts: ModelSpec, *, seed: int = 0) -> Samples:
    """Inputs of a graph of the contract: each row at another position, its cache filled so far."""
    generator = np.random.default_rng(seed)
    axes = AXES | {"source": min(5, facts.max_source_positions)}
    pinned = [t.shape[2] for t in spec.inputs if t.role == "past_key"]
    axes["capacity"] = next(
        (size for size in pinned if isinstance(size, int)), min(9, facts.max_target_positions)
    )
    mask = next((t.shape for t in spec.inputs if t.role == "source_mask"), ())
    if mask and isinstance(mask[1], int):  # a window of audio
        axes["source"] = mask[1]
    lengths = np.linspace(1, axes["source"], axes["batch"]).astype(int)
    position = np.linspace(0, axes["capacity"] - 1, axes["batch"]).astype(np.int64)
    values: dict[str, NDArray[np.generic]] = {}
    for tensor in spec.inputs:
        shape = tuple(axes[d] if isinstance(d, str) else d for d in tensor.shape)
        match tensor.role:
            case "source" if facts.source_vocab_size is None:
                value: NDArray[np.generic] = generator.standard_normal(shape)
            case "source":
                value = generator.integers(0, facts.source_vocab_size, shape)
            case "token":
                value = generator.integers(0, facts.target_vocab_size, shape)
            case "source_mask":
                value = np.arange(axes["source"]) < lengths[:, None]
            case "position":
                value = position
            case "past_key" | "past_value":
                # What a row has not written yet is zero, and stays so.
                written = np.arange(axes["capacity"]) < position[:, None]
                value = generator.standard_normal(shape) * written[:, None, :, None]
            case _:
                value = generator.standard_normal(shape)
        values[tensor.name] = value.astype(np.dtype(tensor.dtype))
    return values


def samples_for_model(model: ir.Model, *, seed: int = 0) -> Samples:
    """Inputs for a graph of which nothing is known but names, dtypes and shapes.

    An axis that is named the same has the same size everywhere. Integers are token ids unless a
    name says mask (ones, the last row shorter) or position; floats are normal.

    Raises:
        PassError: the shape of an input is not known.
    """
    generator = np.random.default_rng(seed)
    sizes: dict[str, int] = {}
    values: dict[str, NDArray[np.generic]] = {}
    for tensor in model.graph.inputs:
        if tensor.shape is None or tensor.dtype is None or tensor.name is None:
            raise PassError(
                f"input {tensor.name}: expected a type and a known number of axes, found none; "
                "without samples the graph can be optimized but not compared (--no-compare)"
            )
        shape = tuple(
            d if isinstance(d, int) else sizes.setdefault(str(d.value), _size(str(d.value)))
            for d in tensor.shape
        )
        name, dtype = tensor.name.lower(), tensor.dtype.numpy()
        value: NDArray[np.generic]
        if "mask" in name:
            value = np.ones(shape)
            if value.ndim > 1 and shape[0] > 1 and shape[-1] > 2:
                value[-1, ..., -2:] = 0
        elif "position" in name:
            value = np.broadcast_to(np.arange(shape[-1] if shape else 1), shape or (1,))
            value = value.reshape(shape)
        elif np.issubdtype(dtype, np.integer):
            value = generator.integers(0, _smallest_table(model), shape)
        else:
            value = generator.standard_normal(shape)
        values[tensor.name] = value.astype(dtype)
    return values


def _size(axis: str) -> int:
    """Unlike sizes for unlike names, the same in every run; of a sum the sum."""
    if "+" in axis:
        return sum(_size(part.strip()) for part in axis.split("+"))
    if axis.isdigit():
        return int(axis)
    return 2 if "batch" in axis.lower() else 3 + sum(axis.encode()) % 5


def _smallest_table(model: ir.Model) -> int:
    """Rows of the smallest embedding: ids below are valid wherever they go."""
    tables = [node.inputs[0] for node in model.graph.all_nodes() if node.op_type == "Gather"]
    rows = [
        numbers.shape[0] for t in tables if weight(t, 2) and (numbers := constant(t)) is not None
    ]
    return min(rows, default=2)
