"""Checks that graphs in exact form compute what the oracle computes in float64.

The exact form (`optimize.exact`) rounds nothing, so that a difference is a fault of the graph or
rounding to float32, which the oracle's runs in float32 and in float64 tell. A wrong position or
mask shows as clearly in int4 as in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

from dragoman.reference_model import EncoderModel, ReferenceModel
from dragoman.runtime import Model
from dragoman.runtime.backends.interface import Encoded
from dragoman.runtime.decoding.request import batches, pad
from dragoman.runtime.format.contract import Role
from dragoman.runtime.format.parity import NOT_FINITE, Check

from ..checks.distances import HEADS_LAST
from ..checks.encoders import halved
from ..oracle import encoder_pass, linear_in_parts, oracle_batches, oracle_pass
from ..tolerances import Tally
from .probes import Probe, batch_of, parameters_of

Array = NDArray[Any]

ROUNDING_MULTIPLES = 16.0
"""How far a channel may be from the oracle in float64, as a multiple of what float32 does to the
oracle. Right bundles of all families reach 5; kernels order sums otherwise, and approximate
exponentials and error functions."""

MOST_OPERATIONS = 3e11
"""Multiplications that the oracle may take in float64, some ten seconds on two cores."""
ROUNDED_SHARE = 0.25
"""The share of a difference from the oracle in float32 that counts: the oracle is off, too, and on
long inputs further than short ones tell."""

EPSILON = 2.0**-23
MOST_ROWS, MOST_TOKENS = 16, 2048
MOST_LOGITS = 2**24
"""Logits of a batch; of more, only those of positions at equal distances are compared. All earlier
positions have a part in them."""
PART = 2**22
"""Numbers that are widened or compared at once."""


@dataclass
class ChannelMeter:
    """How far each channel of an output is from its exact value, over several batches."""

    found: Array
    """The largest difference of the bundle by channel, or what counts of it."""
    oracle: Array
    """The largest difference of the oracle in float32 by channel."""
    size: Array
    """The largest exact value by channel."""
    places: Array
    """Where the largest difference of the bundle is, by channel."""

    @classmethod
    def of(cls, channels: int) -> ChannelMeter:
        """Make a meter of so many channels."""
        found, oracle, size = np.zeros((3, channels))
        return cls(found, oracle, size, np.zeros(channels, np.int64))

    def add(self, found: Array, oracle: Array, exact: Array | None, place: int) -> None:
        """Measure more positions.

        Args:
            found, oracle, exact: [positions, channels]; exact values default to the oracle's
            place: the number of what they were computed from
        """
        rows = max(1, PART // found.shape[1])
        for first in range(0, len(found), rows):
            part = slice(first, first + rows)
            self._add(found[part], oracle[part], None if exact is None else exact[part], place)

    def _add(self, found: Array, oracle: Array, exact: Array | None, place: int) -> None:
        if exact is None:
            right, share = oracle.astype(np.float64), ROUNDED_SHARE
            rounded = EPSILON * np.abs(right)
        else:
            right, share = exact, 1.0
            rounded = np.abs(oracle - right)
        apart = share * np.abs(found.astype(np.float64) - right)
        apart[~np.isfinite(apart)] = NOT_FINITE
        largest = apart.max(axis=0)
        self.places[largest > self.found] = place
        self.found = np.maximum(self.found, largest)
        self.oracle = np.maximum(self.oracle, rounded.max(axis=0))
        self.size = np.maximum(self.size, np.abs(right).max(axis=0))

    @property
    def allowed(self) -> Array:
        """The difference that rounding to float32 explains, by channel."""
        usual = max(float(np.median(self.oracle)), EPSILON * float(np.median(self.size)))
        return ROUNDING_MULTIPLES * np.maximum(self.oracle, usual) + 1e-30

    @property
    def excess(self) -> Array:
        """The difference as a multiple of what is allowed, by channel."""
        return self.found / self.allowed


class InFloat64(TorchFunctionMode):
    """A context in which a model in float32 computes in float64, from its embedding on.

    Weights are widened where an operator reads them, without a second copy of all.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.embedding:
            return func(*args, **kwargs).double()
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        if not any(x.dtype == torch.float64 for x in tensors):
            return func(*args, **kwargs)
        if func is F.linear:
            x, weight, *bias = args
            parts = torch.split(weight, max(1, PART // weight.shape[1]))
            wide = (part.double() for part in parts)
            return linear_in_parts(x, len(weight), wide, *bias, **kwargs)

        def widened(value: Any) -> Any:
            narrow = isinstance(value, Tensor) and value.dtype == torch.float32
            return value.double() if narrow else value

        args, kwargs = tree_map(widened, (args, kwargs))
        return func(*args, **kwargs)


def compare_graphs(meters: Mapping[str, ChannelMeter], probes: Sequence[Probe]) -> Check:
    """Judge every output of the graphs' exact form."""
    tally = Tally()
    for name, meter in meters.items():  # in the order of computation
        excess = meter.excess
        channel, beyond = int(excess.argmax()), int((excess > 1).sum())
        found, at = meter.found[channel], probes[int(meter.places[channel])]
        problem = (
            f"{name}, channel {channel}, differs by {found:.3g}, {at.name}; rounding explains "
            f"{meter.allowed[channel]:.2g}"
        )
        if found >= NOT_FINITE:
            problem = f"{name} has values that are NaN or infinite, {at.name}"
        tally.add(len(excess), beyond, float(excess.max()), problem if beyond else "")
    return tally.check("graphs", "channels")


def measure_graphs(
    exact: Model, oracle: ReferenceModel, probes: Sequence[Probe]
) -> dict[str, ChannelMeter]:
    """Compare every output of the graphs' exact form with the oracle's."""
    meters = dict[str, ChannelMeter]()
    taken = 0.0
    for batch in sorted(_batches(exact, probes), key=_positions):
        found = _bundle_outputs(exact, batch)
        rounded = _oracle_outputs(exact, oracle, batch)
        taken += _positions(batch) * parameters_of(oracle)
        right = None
        if not meters or taken <= MOST_OPERATIONS:
            with InFloat64():
                right = _oracle_outputs(exact, oracle, batch, np.float64)
        for name in found:
            for row, index in enumerate(batch.numbers):
                own, of_oracle = found[name][row], rounded[name][row]
                meter = meters.setdefault(name, ChannelMeter.of(own.shape[-1]))
                meter.add(own, of_oracle, None if right is None else right[name][row], index)
    return meters


@dataclass(frozen=True)
class _Batch:
    numbers: list[int]
    source: Array
    source_mask: NDArray[np.bool_]
    read: NDArray[np.int64]
    read_mask: NDArray[np.bool_]
    positions: NDArray[np.int64]
    """Positions of targets whose logits are compared, [R]."""
    types: NDArray[np.int64] | None
    """The segment of each source token; None: the model does not tell them apart."""


def _batches(model: Model, probes: Sequence[Probe]) -> Iterator[_Batch]:
    spec, head = model.manifest.model, model.manifest.head
    short = [i for i, probe in enumerate(probes) if not probe.is_long]
    lengths = [(len(probes[i].source), len(probes[i].read)) for i in short]
    grouped: Iterable[list[int]]
    if head is not None:
        sizes = [source for source, _ in lengths]
        grouped = batches(sizes, max_batch_size=MOST_ROWS, max_batch_tokens=MOST_TOKENS)
    else:
        grouped = oracle_batches(spec, lengths)
    together = [[short[i] for i in numbers] for numbers in grouped] if short else []
    for numbers in (*together, *([i] for i, probe in enumerate(probes) if probe.is_long)):
        source, source_mask = batch_of([probes[i] for i in numbers], spec)
        read, read_mask = pad([probes[i].read for i in numbers], spec.pad_token_id)
        types = None
        if head is not None and head.token_types:
            types, _ = pad([halved(int(length)) for length in source_mask.sum(axis=1)], 0)
        rows, length = read.shape
        fitting = min(length, max(1, MOST_LOGITS // (rows * max(1, spec.target_vocab_size))))
        positions = np.linspace(length - 1, 0, fitting).astype(np.int64)[::-1]
        yield _Batch(numbers, source, source_mask, read, read_mask, positions.copy(), types)


def _positions(batch: _Batch) -> int:
    return max(batch.source_mask.size, batch.read.size)


Rows = list[Array]
"""For each probe of a batch, [positions, channels] without padding."""


def _bundle_outputs(model: Model, batch: _Batch) -> dict[str, Rows]:
    manifest = model.manifest
    outputs: dict[str, Rows] = {}
    source: Array | Encoded = batch.source
    if manifest.model.has_encoder:
        source = encoded = model.backend.encode(batch.source, batch.source_mask, batch.types)
        for tensor in manifest.graphs["encoder"].outputs:
            outputs[tensor.name] = _encoded_rows(tensor.role, encoded[tensor.name], batch)
    if manifest.model.has_decoder:
        given = (source, batch.source_mask, batch.read, batch.positions)
        logits = model.backend.score(*given)
        outputs["logits"] = _rows(logits, batch.read_mask[:, batch.positions])
    return outputs


def _oracle_outputs(
    model: Model, oracle: ReferenceModel, batch: _Batch, dtype: type[np.floating] = np.float32
) -> dict[str, Rows]:
    manifest, outputs = model.manifest, dict[str, Rows]()
    encoder = manifest.graphs.get("encoder")
    source = batch.source.astype(dtype) if manifest.model.takes_audio else batch.source
    if isinstance(oracle, EncoderModel):
        assert encoder is not None
        found = encoder_pass(oracle, source, batch.source_mask, batch.types)
        for tensor, values in zip(encoder.outputs, found, strict=True):
            outputs[tensor.name] = _encoded_rows(tensor.role, values, batch)
        return outputs
    given = (source, batch.source_mask, batch.read, batch.positions)
    cross, logits = oracle_pass(oracle, *given)
    for tensor in encoder.outputs if encoder else ():
        assert tensor.layer is not None
        values = cross[tensor.layer][0 if tensor.role == "cross_key" else 1].numpy()
        outputs[tensor.name] = _encoded_rows(tensor.role, values, batch)
    outputs["logits"] = _rows(logits, batch.read_mask[:, batch.positions])
    return outputs


def _encoded_rows(role: Role, values: Array, batch: _Batch) -> Rows:
    if role in ("cross_key", "cross_value"):
        by_position = values.transpose(HEADS_LAST)
        return _rows(by_position.reshape(*by_position.shape[:2], -1), batch.source_mask)
    if role in ("embedding", "class_logits"):
        return [row[None] for row in values]
    return _rows(values, batch.source_mask)


def _rows(values: Array, mask: NDArray[np.bool_]) -> Rows:
    return [row if own.all() else row[own] for row, own in zip(values, mask, strict=True)]
