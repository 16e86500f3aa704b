"""Applying passes in order, and checking each one's requirements and effect on outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from dragoman.runtime.format.manifest import PassRecord

from .graph_pass import GraphPass, PassError, Property
from .running import NOT_FINITE, Outputs, Samples, difference, resolution, run


def apply_passes(
    model: ir.Model,
    passes: Sequence[GraphPass],
    *,
    graph: str,
    samples: Samples | None,
    properties: frozenset[Property] = frozenset(),
    progress: Callable[[str], None] = lambda stage: None,
) -> list[PassRecord]:
    """Apply passes to a graph, in place.

    Args:
        graph: the graph's name in records and messages
        samples: inputs on which the outputs before and after each pass are compared; None: outputs
            are not compared
        properties: the properties of the graph before the passes
        progress: called with a description of each pass as it begins

    Returns:
        a record of each pass, in order

    Raises:
        PassError: a pass requires a property that the graph does not have, fails, or changes an
            output by more than its tolerance; names it and the passes before it. Or ONNX Runtime
            cannot run the graph, neither before nor after the passes.
    """
    records: list[PassRecord] = []
    outputs = _Outputs(model, samples)
    for step in passes:
        where = f"{graph}: pass {step.name}, after {', '.join(r.name for r in records) or 'none'}"
        missing = step.requires - properties
        if missing:
            raise PassError(f"{where}: requires {', '.join(sorted(missing))}")
        progress(f"{graph}: {step.name}")
        nodes = count_nodes(model)
        allowed = max(step.tolerance, resolution(model))
        try:
            changes = step.apply(model)
            allowed = max(allowed, changes.rounding, resolution(model))
            change = outputs.change(model, allowed) if changes.any else outputs.unchanged()
        except PassError as error:
            raise PassError(f"{where}: {error}") from error
        except Exception as error:  # foreign graphs may raise any exception in a pass
            raise PassError(f"{where}: {type(error).__name__}: {error}") from error
        properties |= step.ensures
        records.append(
            PassRecord(
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
        )
    if outputs.unrunnable is not None:
        raise PassError(
            f"{outputs.unrunnable}; to optimize the graph without running and comparing it, use "
            "--no-compare"
        )
    return records


class _Outputs:
    """The outputs of a graph as it changes.

    Some graphs run on ONNX Runtime only after a pass has repaired them; comparison starts there.
    """

    def __init__(self, model: ir.Model, samples: Samples | None) -> None:
        self._samples = samples
        self._last: Outputs | None = None
        self.unrunnable: PassError | None = None
        if samples is not None:
            try:
                self._last = run(model, samples)
            except PassError as error:
                self.unrunnable = error

    def unchanged(self) -> float | None:
        return None if self._last is None else 0.0

    def change(self, model: ir.Model, allowed: float) -> float | None:
        """Return the largest difference from the previous outputs; None if there are none.

        Raises:
            PassError: the difference exceeds what is allowed, or the graph ran before and no longer
                does.
        """
        if self._samples is None:
            return None
        before = self._last
        try:
            self._last = run(model, self._samples)
        except PassError:
            if self.unrunnable is None:
                raise
            return None
        self.unrunnable = None
        if before is None:
            return None
        name, change = difference(before, self._last)
        if change >= NOT_FINITE:
            raise PassError(f"output {name} becomes NaN or infinite, or changes its shape")
        if change > allowed:
            raise PassError(f"changes output {name} by {change:.3g}, allowed {allowed:g}")
        return change


def count_nodes(model: ir.Model) -> int:
    """Return the number of nodes in the graph and its subgraphs, without Constant nodes."""
    return sum(node.op_type != "Constant" for node in model.graph.all_nodes())
