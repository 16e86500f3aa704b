"""Finds what a graph should hold of a checkpoint's weights by the names that passes give them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.optimize.dequantized import QuantizedWeight
from dragoman.reference_model import ReferenceModel

Array = NDArray[Any]
Tensors = Mapping[str, NDArray[np.float32]]
"""The parameters and buffers of a model by name, tied ones under each of their names."""

PREFIX = re.compile(r"^(?:encoder|decoder)/")
"""The prefix of a weight in the graph that shows attention, which consists of the others."""

CAST = re.compile(r"\.(?:b?float16|float)$")
PACKED = re.compile(r"(.+)\.(packed|packed_bias)")
SCALED = re.compile(r"(.+)\.scaled_*")
BILINEAR = re.compile(r"(.+\.)query\.(weight|bias)\.bilinear")
OF_ACTIVATIONS = (math.sqrt(2), math.sqrt(0.5), math.sqrt(2 / math.pi), 0.044715, 1.702)
"""Constants of GELU and its approximations."""

ALIKE = 0.5
"""The share of a matrix's size by which it may differ from the tensor that it is taken for."""

SOME = slice(64)
"""Outputs that tell whether a square matrix is transposed."""

SCALED_NEAR = 0.1
"""Within this of the scale of scores, a weight was meant to be multiplied by it."""


@dataclass(frozen=True)
class CheckpointWeights:
    """The weights of a checkpoint, and what a graph of it should hold."""

    tensors: Tensors
    """Parameters and buffers by name, tied ones under each of their names."""
    score_scale: float
    """The factor of attention scores."""
    constants: tuple[float, ...] = ()
    """Numbers that a graph may hold without a name, as they were before they were rounded to 16
    bits."""
    parameters: tuple[str, ...] = ()

    @classmethod
    def of(cls, reference: ReferenceModel) -> CheckpointWeights:
        """Collect the weights of a model."""
        parameters = dict(reference.named_parameters(remove_duplicate=False))
        named = parameters | dict(reference.named_buffers(remove_duplicate=False))
        tensors = {
            name: tensor.detach().numpy()
            for name, tensor in named.items()
            if tensor.is_floating_point()
        }
        config = reference.config
        scale = config.score_scale or 1 / math.sqrt(config.head_size)
        roots = map(math.sqrt, (config.d_model, config.head_size))
        sizes = [power for root in roots for power in (root, 1 / root, math.sqrt(root))]
        constants = (scale, math.sqrt(scale), *sizes, *OF_ACTIVATIONS)
        return cls(tensors, scale, constants, tuple(parameters))

    def expected(self, name: str, own: Array | QuantizedWeight) -> Array | None:
        """Compute what a weight of a graph should hold.

        Args:
            name: in the graph, with what passes append to it: `a.weight+b.weight.packed`,
                `a.weight.scaled`, `a.query.weight.bilinear`, `a.weight.float16`
            own: what it holds, which tells the order of its axes and the factor of a scaled weight
        """
        name = CAST.sub("", PREFIX.sub("", name))
        if packed := PACKED.fullmatch(name):
            return self._packed(packed[1].split("+"), packed[2])
        if name in self.tensors:
            return self._nearest_way(name, own)
        held = np.asarray(own)
        if scaled := SCALED.fullmatch(name):
            ways = self._ways(scaled[1], held) if scaled[1] in self.tensors else []
            found = [way * self._factor(way, held) for way in ways]
            return min(found, key=lambda way: _apart(way, held), default=None)
        if bilinear := BILINEAR.fullmatch(name):
            return self._bilinear(bilinear[1], bilinear[2], held)
        known = self.alike(held)
        return self._constant(held) if known is None else self._nearest_way(known, held)

    def alike(self, own: Array) -> str | None:
        """Find the tensor that a matrix without a name holds, transposed or not."""
        if own.ndim != 2 or own.dtype != np.float32 or not np.any(own):
            return None
        ways = [(name, way) for name in self.tensors for way in self._ways(name, own)]
        some, allowed = own[..., SOME], ALIKE * float(np.abs(own).sum())
        likely = sorted(ways, key=lambda way: _apart(way[1][..., SOME], some))
        return next((name for name, way in likely if _apart(way, own) < allowed), None)

    def sources(self, name: str, own: Array | QuantizedWeight) -> set[str]:
        """Find the checkpoint's tensors that a weight of a graph is made of, by name or content."""
        named = set(sources_of(name))
        if not named.isdisjoint(self.tensors):
            return named
        known = self.alike(np.asarray(own))
        return named if known is None else {known}

    def _ways(self, name: str, own: Array | QuantizedWeight) -> list[Array]:
        plain = self.tensors[name]
        return [way for way in (plain, plain.T) if way.shape == own.shape]

    def _nearest_way(self, name: str, own: Array | QuantizedWeight) -> Array | None:
        ways = self._ways(name, own)
        if len(ways) < 2:
            return next(iter(ways), None)
        some = own.read(SOME).values if isinstance(own, QuantizedWeight) else own[..., SOME]
        return min(ways, key=lambda way: _apart(way[..., SOME], some))

    def _constant(self, own: Array) -> Array | None:
        if own.dtype.itemsize != 2:
            return None
        if own.size == 1:
            known = [c for c in self.constants if own.dtype.type(c) == own.item()]
            return np.full(own.shape, known[0], np.float32) if known else None
        for name in gathered(own, self.tensors):
            table = self.tensors[name]
            rows = {row.tobytes(): n for n, row in enumerate(table.astype(own.dtype))}
            return table[[rows[row.tobytes()] for row in own]]
        return None

    def _packed(self, parts: list[str], kind: str) -> Array | None:
        weights = list(map(self.tensors.get, parts))
        found = []
        for part, weight in zip(parts, weights, strict=True):
            if weight is None:
                return None
            bias = self.tensors.get(part.removesuffix("weight") + "bias")
            none = np.zeros(len(weight), np.float32)
            found.append(weight.T if kind == "packed" else none if bias is None else bias)
        return np.concatenate(found, axis=-1)

    def _factor(self, plain: Array, own: Array) -> np.float32:
        """Find a weight's factor: the scale of scores, or a regression on rounded numbers."""
        wide = own.astype(np.float64)
        found = np.vdot(wide, wide) / (np.vdot(plain.astype(np.float64), wide) or 1.0)
        near = abs(found / self.score_scale - 1) < SCALED_NEAR
        return np.float32(self.score_scale if near else found)

    def _bilinear(self, attention: str, kind: str, own: Array) -> Array | None:
        plain = self.tensors.get(f"{attention}query.{kind}")
        matrices = self.tensors.get(f"{attention}bilinear")
        if plain is None or matrices is None:
            return None
        plain = plain.T
        heads = plain.reshape(*plain.shape[:-1], *matrices.shape[:2])
        folded: Array = np.einsum("...hi,hij->...hj", heads, matrices).reshape(own.shape)
        return folded


def sources_of(name: str) -> Iterator[str]:
    """List the checkpoint's weights that a weight of a graph is made of."""
    name = CAST.sub("", name)
    for part in name.split("+"):
        part = re.sub(r"\.(?:packed|packed_bias|scaled_*|bilinear)$", "", part)
        yield part
    if name.endswith(".packed_bias"):
        for part in name.removesuffix(".packed_bias").split("+"):
            yield part.removesuffix("weight") + "bias"
    if match := BILINEAR.fullmatch(name):
        yield f"{match[1]}bilinear"


def _apart(expected: Array, own: Array) -> float:
    return float(np.abs(expected - own).sum())


def gathered(own: Array, tensors: Tensors) -> Iterator[str]:
    """Find tables whose rows a constant consists of, such as biases of relative positions."""
    if own.ndim != 2:
        return
    rows = {row.tobytes() for row in own}
    for name, table in tensors.items():
        if table.ndim == 2 and table.shape[1] == own.shape[1]:
            known = {row.tobytes() for row in table.astype(own.dtype)}
            # A bucket may be of no distance, as the first of those to the right.
            if rows <= known and 2 * len(rows) > len(known):
                yield name
