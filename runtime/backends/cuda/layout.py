"""What of a batch lies on the device, and in what shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from ...manifest import GraphSpec, Manifest, Role, TensorSpec
from .tensors import size_of

Slot = tuple[Role, int | None]
"""A tensor of either graph: its role, and its layer where it has one."""

Addresses = Mapping[Slot, int]


class Sizes(NamedTuple):
    """What a batch looks like on the device.

    Attributes:
        profile: index of the engines' profile; 0 where there are none
        rows: at least those of the batch; the others are copies
        source: tokens of a source, padding included
        capacity: target positions, where the graphs leave that open
    """

    profile: int
    rows: int
    source: int
    capacity: int = 0


class Rounding(Protocol):
    """Sizes that batches are rounded up to: what was prepared for one batch serves the next."""

    def first(self, rows: int, source: int, capacity: int) -> Sizes:
        """For a batch that begins.

        Raises:
            BackendError: it is too large; says what may be.
        """

    def after(self, present: Sizes, rows: int) -> Sizes:
        """What a batch becomes when so many of its rows are left: the rest stays as it lies."""


def power_of_two(rows: int) -> int:
    """The least that is no smaller."""
    return 1 << (rows - 1).bit_length()


def multiple_of(step: int, number: int) -> int:
    """The least that is no smaller."""
    return -(-number // step) * step


def shape_of(tensor: TensorSpec, sizes: Sizes) -> tuple[int, ...]:
    """With numbers for its axes; a step decodes one position."""
    axes = {
        "batch": sizes.rows,
        "source": sizes.source,
        "capacity": sizes.capacity,
        "query": 1,
    }
    return tuple(axes[d] if isinstance(d, str) else d for d in tensor.shape)


def tensors_with_memory(manifest: Manifest) -> list[TensorSpec]:
    """Those that have memory of their own: caches one for both sides, results apart."""
    own = {"source_mask", "token", "position", "past_key", "past_value", "logits"}
    encoder, decoder = manifest.encoder, manifest.decoder
    tensors = [
        *(*encoder.inputs, *encoder.outputs),
        *(t for t in (*decoder.inputs, *decoder.outputs) if t.role in own),
    ]
    return list({(tensor.role, tensor.layer): tensor for tensor in tensors}.values())


def row_bytes(manifest: Manifest, sizes: Sizes) -> int:
    """What a row takes on the device, sources of that size."""
    one = sizes._replace(rows=1)
    return sum(size_of(t.dtype, shape_of(t, one)) for t in tensors_with_memory(manifest))


def outputs_with_slots(graph: GraphSpec) -> Iterator[tuple[TensorSpec, Slot]]:
    """A graph's outputs and whose memory each takes: caches are written in place."""
    for tensor in graph.outputs:
        match tensor.role:
            case "present_key":
                yield tensor, ("past_key", tensor.layer)
            case "present_value":
                yield tensor, ("past_value", tensor.layer)
            case _:
                yield tensor, (tensor.role, tensor.layer)
