"""Applying passes in order, and checking each one's requirements and effect on outputs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from dragoman.progress import quiet
from dragoman.runtime.format.manifest import PassRecord
from dragoman.runtime.format.parity import NOT_FINITE

from .checking.branches import not_executed
from .checking.interface import Interface, keep_declarations, keep_interface
from .checking.rounding import NEAR, Yardstick
from .graph_pass import GraphPass, PassError, Property
from .running import Outputs, Runner, Samples, difference, distance, is_large, resolution

RUN_SECONDS = 600.0
"""The longest time of a run of a foreign graph, whose loops may not end on random inputs."""


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
        self._sets = sets
        self._last: list[Outputs] | None = None
        self._yardstick = Yardstick(model, sets) if foreign and sets else None
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
        before = self._last
        if not changed or not self._sets:
            return None if before is None else 0.0, allowed
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


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Keep libraries from logging tracebacks of what they cannot infer, fold or convert."""
    with quiet("onnx_ir", "onnxscript", level=logging.CRITICAL + 1):
        yield


def count_nodes(model: ir.Model) -> int:
    """Return the number of nodes in the graph and its subgraphs, without Constant nodes."""
    return sum(node.op_type != "Constant" for node in model.graph.all_nodes())
