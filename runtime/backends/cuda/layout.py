"""The memory layout of a batch on the device: tensors with memory, shapes and rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ...format.contract import ROLES, Change, DataType, GraphSpec, Role, Slot, TensorSpec
from ...format.manifest import Manifest
from ..interface import StepOutput
from .device import Bytes

SIZES: dict[DataType, int] = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "bool": 1,
}


def size_of(dtype: DataType, shape: tuple[int, ...]) -> int:
    """Return the size of a tensor in bytes."""
    return SIZES[dtype] * math.prod(shape)


def as_numbers(memory: Bytes, dtype: DataType, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a copy of the tensor at the beginning of the memory; bfloat16 as float32."""
    raw = memory[: size_of(dtype, shape)]
    if dtype == "bfloat16":
        wide = raw.view(np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).reshape(shape)
    return raw.view(np.dtype(dtype)).reshape(shape).copy()


Addresses = Mapping[Slot, int]
"""The address of each tensor by its `memory_slot`."""


def memory_slot(tensor: TensorSpec) -> Slot:
    """Return the slot whose memory holds a tensor on the device.

    The cache that a step writes to is its input. A state that is rewritten has memory of its own,
    since kernels may still read the old one; `fed_back` copies it.
    """
    return tensor.slot if tensor.change is Change.REPLACED else tensor.memory


def fed_back(decoder: GraphSpec, sizes: Sizes, addresses: Addresses) -> list[tuple[int, int, int]]:
    """Return the copies that make a step's tokens and states the input of the next one.

    Returns:
        the target, the source and the size of each, as for `Device.copy`
    """
    copies = [(addresses[Slot("token")], addresses[Slot("next_token")], 8 * sizes.rows)]
    for state in decoder.outputs:
        if state.role == "present_state":
            size = size_of(state.dtype, shape_of(state, sizes))
            copies.append((addresses[state.memory], addresses[state.slot], size))
    return copies


ALIGNMENT = 256
"""The alignment of tensors in bytes, which cudaMalloc guarantees (TensorRT, `setTensorAddress`)."""

RESULTS: frozenset[Role] = frozenset({"next_token", "next_log_probability"})
"""Outputs that are adjacent in memory, so that they are downloaded together after a step."""


GROUP_SIZE = 4
"""Maximum number of steps whose tokens are read together."""

GROUPS_IN_FLIGHT = 2
"""Number of groups of steps in the stream: the host reads one while the device runs the next."""

BUFFERS = GROUP_SIZE * (GROUPS_IN_FLIGHT + 1)
"""Number of steps whose results are kept for the host. `EarlierStates` keeps as many states."""


class Sizes(NamedTuple):
    """The sizes of a batch on the device."""

    profile: int
    """Index of the engines' profile; 0 for graphs."""
    sources: int
    """Number of places for sources; unused places hold copies."""
    source: int
    capacity: int = 0
    """Number of target positions, for graphs with a dynamic capacity."""
    width: int = 1

    @property
    def rows(self) -> int:
        """The number of rows being decoded."""
        return self.sources * self.width


class Rounding(Protocol):
    """A rule for rounding the sizes of batches up, so that batches reuse workspaces."""

    def first(self, sources: int, source: int, capacity: int, width: int) -> Sizes:
        """Return the sizes of a new batch, or of a batch that others join, within the limits."""

    def after(self, present: Sizes, sources: int) -> Sizes:
        """Return the sizes for a number of remaining sources; all other sizes stay."""


SOURCE_STEP = 16
"""Source lengths are rounded up to sizes of this many positions."""


def rounded_up(number: int, least: int = 1) -> int:
    """Return the smallest size that is at least `number`, so that batches have few sizes.

    Sizes are `least` times 1, 2, 3, 4, 6, 8, 12, 16, ...: powers of two and halves between them.
    """
    units = max(1, -(-number // least))
    power = 1 << (units - 1).bit_length()
    return least * (power * 3 // 4 if power > 2 and units <= power * 3 // 4 else power)


def shape_of(tensor: TensorSpec, sizes: Sizes) -> tuple[int, ...]:
    """Return the numeric shape of a tensor for a step of one position."""
    axes = {
        "batch": sizes.rows,
        "source_batch": sizes.sources,
        "source": sizes.source,
        "capacity": sizes.capacity,
        "query": 1,
        "read": 1,
    }
    return tensor.sized(axes)


class RowLayout(NamedTuple):
    """The layout of a row of a tensor with positions: lines that each hold all positions."""

    lines: int
    """Number of lines, such as one for each head."""
    pitch: int
    """Number of bytes from one line to the next."""
    position: int
    """Number of bytes of a position."""

    @property
    def size(self) -> int:
        """The number of bytes of a row."""
        return self.lines * self.pitch


def row_layout(tensor: TensorSpec, sizes: Sizes) -> RowLayout:
    """Return the layout of the rows of a source's tensor, or of a cache."""
    shape, axes = shape_of(tensor, sizes), ROLES[tensor.role].axes
    axis = axes.index("capacity" if tensor.change is Change.APPENDED else "source")
    return RowLayout(
        math.prod(shape[1:axis]),
        size_of(tensor.dtype, shape[axis:]),
        size_of(tensor.dtype, shape[axis + 1 :]),
    )


def tensors_with_memory(manifest: Manifest) -> list[TensorSpec]:
    """Return the tensors that need their own memory, which `RESULTS` and written caches do not.

    Neither do those of the attention graph, which does not run on the device.
    """
    own = {
        tensor.slot: tensor
        for name, graph in manifest.graphs.items()
        if name != "attention"
        for tensor in (*graph.inputs, *graph.outputs)
        if memory_slot(tensor) == tensor.slot and tensor.role not in RESULTS
    }
    return list(own.values())


def row_bytes(manifest: Manifest, sizes: Sizes) -> int:
    """Return the number of bytes on the device for a source of this size with one row."""
    one = sizes._replace(sources=1, width=1)
    return sum(
        size_of(t.dtype, shape_of(t, one)) * (1 + BUFFERS * (t.role == "past_state"))
        for t in tensors_with_memory(manifest)
    )


class ResultLayout(NamedTuple):
    """The layout of a step's results: the tokens of all rows, then their log-probabilities."""

    widest: int

    @property
    def tokens(self) -> int:
        """The number of bytes of the tokens, where the log-probabilities begin."""
        return -(-8 * self.widest // ALIGNMENT) * ALIGNMENT

    @property
    def size(self) -> int:
        """The number of bytes of all results."""
        return self.tokens + 4 * self.widest

    def read(self, memory: Bytes, rows: NDArray[np.intp]) -> StepOutput:
        """Return a copy of the results of these rows."""
        tokens = memory[: self.tokens].view(np.int64)
        log_probabilities = memory[self.tokens : self.size].view(np.float32)
        return StepOutput(tokens[rows], log_probabilities[rows])
