"""Which tensors of a batch have memory on the device, and their shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from ...format.contract import Role, Slot, TensorSpec
from ...format.manifest import Manifest
from .tensors import size_of

Addresses = Mapping[Slot, int]
"""The address of each tensor. An output that updates an input has the input's address."""

RESULTS: frozenset[Role] = frozenset({"next_token", "next_log_probability"})
"""Downloaded together after a step, and therefore adjacent in memory."""


class Sizes(NamedTuple):
    """The sizes of a batch on the device.

    Attributes:
        profile: index of the engines' profile; 0 for graphs
        rows: at least as many as the batch has; the rest are copies
        source: tokens of a source, including padding
        capacity: target positions, for graphs with a dynamic capacity
    """

    profile: int
    rows: int
    source: int
    capacity: int = 0


class Rounding(Protocol):
    """The sizes that batches are rounded up to, so that what one batch prepares serves the next."""

    def first(self, rows: int, source: int, capacity: int) -> Sizes:
        """For a new batch.

        Raises:
            BackendError: it is too large; says what the limits are.
        """

    def after(self, present: Sizes, rows: int) -> Sizes:
        """For a batch that has this many rows left; all other sizes stay."""


def power_of_two(rows: int) -> int:
    """The smallest power of two that is at least `rows`."""
    return 1 << (rows - 1).bit_length()


def multiple_of(step: int, number: int) -> int:
    """The smallest multiple of `step` that is at least `number`."""
    return -(-number // step) * step


def shape_of(tensor: TensorSpec, sizes: Sizes) -> tuple[int, ...]:
    """The shape of a tensor in numbers; a step decodes one position."""
    axes = {
        "batch": sizes.rows,
        "source_batch": sizes.rows,
        "source": sizes.source,
        "capacity": sizes.capacity,
        "query": 1,
    }
    return tuple(axes[d] if isinstance(d, str) else d for d in tensor.shape)


def tensors_with_memory(manifest: Manifest) -> list[TensorSpec]:
    """The tensors that need memory: all but outputs that update an input, and `RESULTS`."""
    own = {
        tensor.slot: tensor
        for graph in manifest.graphs.values()
        for tensor in (*graph.inputs, *graph.outputs)
        if tensor.memory == tensor.slot and tensor.role not in RESULTS
    }
    return list(own.values())


def row_bytes(manifest: Manifest, sizes: Sizes) -> int:
    """Bytes that one row takes on the device, with sources of this size."""
    one = sizes._replace(rows=1)
    return sum(size_of(t.dtype, shape_of(t, one)) for t in tensors_with_memory(manifest))
