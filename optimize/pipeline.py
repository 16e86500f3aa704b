"""Passes in order, each checked: what it needs, what it did, and what difference it made."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from dragoman.runtime.format.records import PassRecord

from .compare import NOT_FINITE, Outputs, difference, resolution, run
from .graph_pass import GraphPass, PassError, Property
from .samples import Samples


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
        graph: the graph's name in records
        samples: inputs to compare the graph on before and after each pass; None: not compared
        properties: what is true of the graph
        progress: called with each pass as it begins

    Returns:
        what each did, in order

    Raises:
        PassError: a pass lacks what it requires, fails, or changes an output by more than it may;
            names it and those that ran before. Or ONNX Runtime takes the graph neither before nor
            after them.
    """
    records: list[PassRecord] = []
    outputs = _Outputs(model, samples)
    for step in passes:
        place = f"{graph}: pass {step.name}, after {', '.join(r.name for r in records) or 'none'}"
        missing = step.requires - properties
        if missing:
            raise PassError(f"{place}: requires {', '.join(sorted(missing))}")
        progress(f"{graph}: {step.name}")
        nodes = count_nodes(model)
        allowed = max(step.tolerance, resolution(model))
        try:
            changes = step.apply(model)
            allowed = max(allowed, changes.rounding, resolution(model))
            found = outputs.change(model, allowed) if changes.any else outputs.unchanged()
        except PassError as error:
            raise PassError(f"{place}: {error}") from error
        except Exception as error:  # of graphs of others there is no end
            raise PassError(f"{place}: {type(error).__name__}: {error}") from error
        properties |= step.ensures
        records.append(
            PassRecord(
                step.name,
                graph,
                changes.matches,
                changes.refusals,
                nodes,
                count_nodes(model),
                found,
                allowed,
            )
        )
    if outputs.unrunnable is not None:
        raise PassError(
            f"{outputs.unrunnable}; without running it, it can be optimized but not compared "
            "(--no-compare)"
        )
    return records


class _Outputs:
    """What a graph gives as it changes.

    A graph may be one that ONNX Runtime does not take before some pass repaired it: then there is
    nothing to compare until it runs.
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
        """The largest difference from the outputs before; None where there were none.

        Raises:
            PassError: it is more than is allowed, or a graph that ran runs no more.
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
        name, found = difference(before, self._last)
        if found > allowed:
            what = (
                "values that are not finite"
                if found >= NOT_FINITE
                else f"a difference of {found:.3g}"
            )
            raise PassError(f"causes {what} in output {name}, allowed {allowed:g}")
        return found


def count_nodes(model: ir.Model) -> int:
    """Nodes of the graph and its subgraphs; constants do not count."""
    return sum(node.op_type != "Constant" for node in model.graph.all_nodes())
