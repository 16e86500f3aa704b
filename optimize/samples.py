"""Sample inputs of a graph: valid for their roles, with rows of unequal lengths, seeded."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from dragoman.runtime.format.contract import ROLES, Change, GraphSpec, Owner
from dragoman.runtime.format.model_spec import ModelSpec

from .graph_pass import PassError
from .graph_values import constant, is_weight

Samples = Mapping[str, NDArray[np.generic]]
"""One value for each input of a graph."""


def samples_for_graph(spec: GraphSpec, model: ModelSpec, *, seed: int = 0) -> Samples:
    """Inputs of a graph of the contract: rows at different positions, with caches filled so far,
    two of each source if the graph lets rows share sources.
    """
    generator = np.random.default_rng(seed)
    sizes = _sizes(spec, model)
    position = np.linspace(0, sizes["capacity"] - 1, sizes["batch"]).astype(np.int64)
    values: dict[str, NDArray[np.generic]] = {}
    for tensor in spec.inputs:
        shape = tuple(sizes[d] if isinstance(d, str) else d for d in tensor.shape)
        value: NDArray[np.generic]
        if tensor.owner is Owner.MASK:
            lengths = np.linspace(1, shape[1], shape[0]).astype(int)
            value = np.arange(shape[1]) < lengths[:, None]
        elif tensor.role == "position":
            value = position
        elif tensor.role in ("read", "token_type"):
            value = np.zeros(shape)
        elif tensor.role == "token":
            value = generator.integers(0, model.target_vocab_size, shape)
        elif tensor.role == "source" and model.source_vocab_size is not None:
            value = generator.integers(0, model.source_vocab_size, shape)
        else:
            value = generator.standard_normal(shape)
        if tensor.change is Change.APPENDED:
            # Positions that a row has not written yet are zero.
            written = np.arange(sizes["capacity"]) < position[:, None]
            value = value * written[:, None, :, None]
        values[tensor.name] = value.astype(np.dtype(tensor.dtype))
    return values


def _sizes(spec: GraphSpec, model: ModelSpec) -> dict[str, int]:
    """A size for each dynamic axis of the contract; where the graph has a number, that number."""
    sizes = {
        "batch": 6,
        "source_batch": 3,
        "source": min(5, model.max_source_positions),
        "query": 1,
        "read": 1,
        "capacity": min(9, model.max_target_positions),
    }
    for tensor in spec.inputs:
        if tensor.role == "source":
            continue  # audio features have other axes
        for axis, size in zip(ROLES[tensor.role].axes, tensor.shape, strict=True):
            if axis in sizes and isinstance(size, int):
                sizes[axis] = size
    return sizes


def samples_for_model(model: ir.Model, *, seed: int = 0) -> Samples:
    """Inputs for a graph if only names, dtypes and shapes are known.

    Axes with the same name have the same size. Integers are token ids, unless the name
    contains "mask" (ones; the last row is shorter) or "position". Floats are normally distributed.

    Raises:
        PassError: the type or the number of axes of an input is unknown.
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
    """A size that depends on the name only; for a sum of names, the sum of their sizes."""
    if "+" in axis:
        return sum(_size(part.strip()) for part in axis.split("+"))
    if axis.isdigit():
        return int(axis)
    return 2 if "batch" in axis.lower() else 3 + sum(axis.encode()) % 5


def _smallest_table(model: ir.Model) -> int:
    """Rows of the smallest embedding table: ids below this are valid for all tables."""
    tables = [node.inputs[0] for node in model.graph.all_nodes() if node.op_type == "Gather"]
    rows = [
        numbers.shape[0] for t in tables if is_weight(t, 2) and (numbers := constant(t)) is not None
    ]
    return min(rows, default=2)
