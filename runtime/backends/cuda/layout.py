"""Which tensors of a batch have memory on the device, their shapes, and where their rows lie."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from ...format.contract import ROLES, Change, Role, Slot, TensorSpec
from ...format.manifest import Manifest
from .tensors import size_of

Addresses = Mapping[Slot, int]
"""The address of each tensor. An output that updates an input has the input's address."""

ALIGNMENT = 256
"""The alignment of tensors, in bytes (TensorRT, `setTensorAddress`; cudaMalloc guarantees it)."""

RESULTS: frozenset[Role] = frozenset({"next_token", "next_log_probability"})
"""Downloaded together after a step, and therefore adjacent in memory."""


class Sizes(NamedTuple):
    """The sizes of a batch on the device.

    Attributes:
        profile: index of the engines' profile; 0 for graphs
        sources: at least as many as the batch has; the rest are copies
        source: tokens of a source, including padding
        capacity: target positions, for graphs with a dynamic capacity
        width: rows decoded from each source
    """

    profile: int
    sources: int
    source: int
    capacity: int = 0
    width: int = 1

    @property
    def rows(self) -> int:
        """Rows being decoded."""
        return self.sources * self.width


class Rounding(Protocol):
    """The sizes that batches are rounded up to, so that what one batch prepares serves the next."""

    def first(self, sources: int, source: int, capacity: int, width: int) -> Sizes:
        """For a new batch, or one that others join.

        Raises:
            BackendError: it is too large; says what the limits are.
        """

    def after(self, present: Sizes, sources: int) -> Sizes:
        """For a batch that has this many sources left; all other sizes stay."""


def power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << (number - 1).bit_length()


def multiple_of(step: int, number: int) -> int:
    """The smallest multiple of `step` that is at least `number`."""
    return -(-number // step) * step


def shape_of(tensor: TensorSpec, sizes: Sizes) -> tuple[int, ...]:
    """The shape of a tensor in numbers; a step decodes one position."""
    axes = {
        "batch": sizes.rows,
        "source_batch": sizes.sources,
        "source": sizes.source,
        "capacity": sizes.capacity,
        "query": 1,
        "read": 1,
    }
    return tuple(axes[d] if isinstance(d, str) else d for d in tensor.shape)


class RowLayout(NamedTuple):
    """How a row of a tensor with positions lies in memory: lines, each with all its positions.

    Attributes:
        lines: such as one for each head
        pitch: bytes from one line to the next
        position: bytes of a position
    """

    lines: int
    pitch: int
    position: int

    @property
    def size(self) -> int:
        """Bytes of a row."""
        return self.lines * self.pitch


def row_layout(tensor: TensorSpec, sizes: Sizes) -> RowLayout:
    """Of a tensor of sources, or of a cache."""
    shape, axes = shape_of(tensor, sizes), ROLES[tensor.role].axes
    axis = axes.index("capacity" if tensor.change is Change.APPENDED else "source")
    return RowLayout(
        math.prod(shape[1:axis]),
        size_of(tensor.dtype, shape[axis:]),
        size_of(tensor.dtype, shape[axis + 1 :]),
    )


def tensors_with_memory(manifest: Manifest) -> list[TensorSpec]:
    """The tensors that need memory: all but outputs that update an input, and `RESULTS`. The graph
    that shows attention does not run on the device.
    """
    own = {
        tensor.slot: tensor
        for name, graph in manifest.graphs.items()
        if name != "attention"
        for tensor in (*graph.inputs, *graph.outputs)
        if tensor.memory == tensor.slot and tensor.role not in RESULTS
    }
    return list(own.values())


def row_bytes(manifest: Manifest, sizes: Sizes) -> int:
    """Bytes that a source with one row takes on the device, if its size is this."""
    one = sizes._replace(sources=1, width=1)
    return sum(size_of(t.dtype, shape_of(t, one)) for t in tensors_with_memory(manifest))
