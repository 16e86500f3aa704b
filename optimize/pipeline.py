"""Applying passes in order, and checking each one's requirements and effect on outputs.

What a pass may change in a foreign graph is measured by the graph's own rounding. A graph that
computes in 16 bits is compared with the same computation in float32. Any other is compared with
itself after every weight has moved by its last bit, which shows where rounding grows, such as in
masks of -10000.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import InlinePass

from dragoman.progress import quiet
from dragoman.runtime.format.manifest import PassRecord
from dragoman.runtime.format.parity import NOT_FINITE

from .checking.branches import not_executed
from .checking.interface import Interface, keep_declarations, keep_interface
from .emulation import has_halves, widen
from .graph_pass import GraphPass, PassError, Property
from .running import Outputs, Runner, Samples, difference, distance, is_large, resolution

RUN_SECONDS = 600.0
"""The longest time of a run of a foreign graph, whose loops may not end on random inputs."""

NEAR = 2.0
"""The largest distance from the computation in float32, as a multiple of the given graph's."""


def apply_passes(
    model: ir.Model,
    passes: Sequence[GraphPass],
    *,
    graph: str,
    samples: Samples | Sequence[Samples] | None,
    interface: Interface | None = None,
    properties: frozenset[Property] = frozenset(),
    progress: Callable[[str], None] = lambda stage: None,
) -> list[PassRecord]:
    """Apply passes to a graph, in place.

    Outputs are compared after each pass; those of a bundle's large graph, which takes seconds to
    run, once after all. The last pass that changed it then has the difference, and the sum of the
    tolerances.

    Args:
        samples: one or several sets of inputs on which outputs are compared; None: they are not
        interface: what the graph keeps. Its own rounding is then measured, and a pass may change an
            output by about as much. None: the contract of a bundle's graph is checked elsewhere

    Raises:
        PassError: a pass fails, lacks a property of the graph, or changes too much; or the graph
            runs neither before nor after the passes.
    """
    records: list[PassRecord] = []
    sets = [samples] if isinstance(samples, Mapping) else list(samples or ())
    with quiet_libraries():
        missed = not_executed(model, sets) if sets else ()
        outputs = _Outputs(model, sets, foreign=interface is not None)
        for step in passes:
            where = (
                f"{graph}: pass {step.name}, after {', '.join(r.name for r in records) or 'none'}"
            )
            missing = step.requires - properties
            if missing:
                raise PassError(f"{where}: requires {', '.join(sorted(missing))}")
            progress(f"{graph}: {step.name}")
            record = _apply(step, model, graph, where, outputs, interface)
            properties |= step.ensures
            records.append(replace(record, not_compared=missed))
        records = outputs.compared(model, records)
        if interface is not None:
            keep_declarations(model, interface)
    if outputs.unrunnable is not None:
        raise PassError(
            f"{outputs.unrunnable}; to optimize the graph without running and comparing it, use "
            "--no-compare"
        )
    return records


def _apply(
    step: GraphPass,
    model: ir.Model,
    graph: str,
    where: str,
    outputs: _Outputs,
    interface: Interface | None,
) -> PassRecord:
    nodes, allowed = count_nodes(model), step.tolerance
    if interface is None:
        allowed = max(allowed, resolution(model))
    try:
        changes = step.apply(model)
        if interface is not None:
            keep_interface(model, interface)
        else:
            allowed = max(allowed, resolution(model))
        allowed = max(allowed, changes.rounding)
        change, allowed = outputs.change(model, allowed, changed=changes.any)
    except PassError as error:
        raise PassError(f"{where}: {error}") from error
    except Exception as error:  # foreign graphs may raise any exception in a pass
        raise PassError(f"{where}: {type(error).__name__}: {error}") from error
    return PassRecord(
        step.name,
        graph,
        changes.matches,
        changes.refusals,
        nodes,
        count_nodes(model),
        change,
        allowed,
        changes.choices,
    )


class _Outputs:
    """The outputs of a graph as it changes, from the first pass on after which it runs."""

    def __init__(self, model: ir.Model, sets: Sequence[Samples], *, foreign: bool) -> None:
        self._sets, self._together = sets, bool(sets) and not foreign and is_large(model)
        self._last: list[Outputs] | None = None
        self._yardstick = _Yardstick(model, sets) if foreign and sets else None
        self.unrunnable: PassError | None = None
        if sets:
            try:
                self._last = self._run(model)
            except PassError as error:
                self.unrunnable = error

    def _run(self, model: ir.Model) -> list[Outputs]:
        # Threads cost more than they save in small graphs.
        runner = Runner(model, threads=None if is_large(model) else 1)
        limit = None if self._yardstick is None else RUN_SECONDS
        return [runner.run(samples, seconds=limit) for samples in self._sets]

    def change(
        self, model: ir.Model, allowed: float, *, changed: bool
    ) -> tuple[float | None, float]:
        """Return the difference from the previous outputs that is nearest to its limit, and this.

        It is None if there are no previous outputs, and 0 if the graph has not changed.
        """
        if not changed or not self._sets:
            return None if self._last is None else 0.0, allowed
        return (None, allowed) if self._together else self._compare(model, allowed)

    def _compare(self, model: ir.Model, allowed: float) -> tuple[float | None, float]:
        before = self._last
        try:
            self._last = self._run(model)
        except PassError:
            if self.unrunnable is None:
                raise
            return None, allowed
        self.unrunnable = None
        if before is None:
            return None, allowed
        nearest = 0.0, allowed
        for index, (old, new) in enumerate(zip(before, self._last, strict=True)):
            for name, change in self._distances(old, new).items():
                if change >= NOT_FINITE:
                    raise PassError(f"output {name} becomes NaN or infinite, or changes its shape")
                limit = self._check(index, name, change, allowed) if change > allowed else allowed
                nearest = max(nearest, (change, limit), key=lambda pair: pair[0] / pair[1])
        return nearest

    def compared(self, model: ir.Model, records: list[PassRecord]) -> list[PassRecord]:
        """Compare outputs after all passes, unless they were compared after each."""
        changing = [record for record in records if record.difference is None]
        if not self._together or not changing:
            return records
        last = changing[-1]
        try:
            change, allowed = self._compare(model, sum(record.tolerance for record in changing))
        except PassError as error:
            names = ", ".join(record.name for record in changing)
            raise PassError(f"{last.graph}: passes {names} together: {error}") from error
        if change is None:
            return records
        compared = replace(last, difference=change, tolerance=allowed)
        return [compared if record is last else record for record in records]

    def _distances(self, old: Outputs, new: Outputs) -> dict[str, float]:
        if self._yardstick is None:
            return dict([difference(old, new)])
        if old.keys() != new.keys():
            raise PassError(f"expected outputs {', '.join(old)}, found {', '.join(new)}")
        return {name: distance(old[name], new[name]) for name in old}

    def _check(self, index: int, name: str, change: float, allowed: float) -> float:
        yardstick = self._yardstick
        if yardstick is not None:
            rounding = yardstick.rounding(index, name)
            allowed = max(allowed, (1 + NEAR) * rounding)
            error = yardstick.error(index, (self._last or [])[index], name)
            if error is not None and error > max(allowed, NEAR * rounding):
                raise PassError(
                    f"output {name} is {error:.3g} from the computation in float32, allowed "
                    f"{NEAR:g} times the {rounding:.3g} of the given graph"
                )
        if change > allowed:
            raise PassError(f"changes output {name} by {change:.3g}, allowed {allowed:g}")
        return allowed


class _Yardstick:
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


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Keep libraries from logging tracebacks of what they cannot infer, fold or convert."""
    with quiet("onnx_ir", "onnxscript", level=logging.CRITICAL + 1):
        yield


def count_nodes(model: ir.Model) -> int:
    """Return the number of nodes in the graph and its subgraphs, without Constant nodes."""
    return sum(node.op_type != "Constant" for node in model.graph.all_nodes())
