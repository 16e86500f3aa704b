"""Passes in order, each checked: what it needs, what it did, and what difference it made."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from dragoman.runtime.manifest import PassRecord

from .compare import NOT_FINITE, difference, resolution, run
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
            names it and those that ran before.
    """
    records: list[PassRecord] = []
    before = run(model, samples) if samples is not None else None
    for step in passes:
        done = ", ".join(record.name for record in records) or "none"
        missing = step.requires - properties
        if missing:
            raise PassError(
                f"{graph}: pass {step.name} requires {', '.join(sorted(missing))}; passes run "
                f"before: {done}"
            )
        progress(f"{graph}: {step.name}")
        nodes = count_nodes(model)
        try:
            changes = step.apply(model)
            after = run(model, samples) if samples is not None and changes.matches else before
        except PassError as error:
            raise PassError(f"{graph}: pass {step.name}, after {done}: {error}") from error
        properties |= step.ensures
        name, found = (
            difference(before, after) if before is not None and after is not None else ("", None)
        )
        allowed = max(step.tolerance, resolution(model))
        if found is not None and found > allowed:
            what = (
                "values that are not finite"
                if found >= NOT_FINITE
                else f"a difference of {found:.3g}"
            )
            raise PassError(
                f"{graph}: pass {step.name}, after {done}, causes {what} in output {name}, allowed "
                f"{allowed:g}"
            )
        before = after
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
    return records


def count_nodes(model: ir.Model) -> int:
    """Nodes of the graph and its subgraphs; constants do not count."""
    return sum(node.op_type != "Constant" for node in model.graph.all_nodes())
