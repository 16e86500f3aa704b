"""How far a graph's own rounding moves its outputs: the yardstick of what a pass may change.

A graph that computes in 16 bits is compared with the same computation in float32. Any other is
compared with itself after every weight has moved by its last bit, which shows where rounding
grows, such as in masks of -10000.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import InlinePass

from dragoman.runtime.format.parity import NOT_FINITE

from ..emulation import has_halves, widen
from ..graph_pass import PassError
from ..running import Outputs, Runner, Samples, distance

NEAR = 2.0
"""The largest distance from the computation in float32, as a multiple of the given graph's."""


class Yardstick:
    """The rounding of a graph in its outputs, measured when it is first needed."""

    def __init__(self, model: ir.Model, sets: Sequence[Samples]) -> None:
        self._model, self._sets = model.clone(), sets
        self._others: list[list[Outputs]] | None = None
        self._own: list[Outputs] = []
        self.halves = has_halves(model)

    def rounding(self, index: int, name: str) -> float:
        """Return the distance of an output from what it would be without rounding, on a set."""
        self._measure()
        return max(
            (self._apart(o[index], self._own[index], name) for o in self._others or ()), default=0.0
        )

    def error(self, index: int, outputs: Outputs, name: str) -> float | None:
        """Return the distance of an output from the computation in float32.

        None for a graph that computes in float32 anyway.
        """
        self._measure()
        if not self.halves or not self._others:
            return None
        return self._apart(self._others[0][index], outputs, name)

    @staticmethod
    def _apart(one: Outputs, other: Outputs, name: str) -> float:
        if name not in one or name not in other:
            return 0.0
        apart = distance(one[name], other[name])
        return 0.0 if apart >= NOT_FINITE else apart

    def _measure(self) -> None:
        if self._others is not None:
            return
        self._others = []
        try:
            runner = Runner(self._model)
            self._own = list(map(runner.run, self._sets))
            if self.halves:
                InlinePass()(self._model)
                widen(self._model)
                wide = Runner(self._model)
                self._others = [list(map(wide.run, self._sets))]
                return
            for seed in range(2):
                moved = Runner(_with_moved_weights(self._model, seed))
                generator = np.random.default_rng(seed)
                self._others.append(
                    [moved.run({k: _moved(v, generator) for k, v in s.items()}) for s in self._sets]
                )
        except PassError:  # a graph that only runs after a pass has repaired it
            self._others = []


def _with_moved_weights(model: ir.Model, seed: int) -> ir.Model:
    generator = np.random.default_rng(seed)
    moved = model.clone()
    for graph in moved.graphs():
        for name, value in graph.initializers.items():
            tensor = value.const_value
            if tensor is not None and tensor.dtype.is_floating_point() and tensor.size > 1:
                numbers = np.asarray(tensor.numpy())
                value.const_value = ir.tensor(_moved(numbers, generator), name=name)
    return moved


def _moved(value: NDArray[Any], generator: np.random.Generator) -> NDArray[Any]:
    if value.dtype not in (np.float32, np.float64):
        return value
    step = np.finfo(value.dtype).eps * generator.uniform(-1, 1, value.shape)
    with np.errstate(invalid="ignore", over="ignore"):
        moved = (value * (1 + step)).astype(value.dtype)
    return np.where(value == np.round(value), value, moved)
