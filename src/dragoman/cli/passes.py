"""Passes with progress shown, and what they did: what `build` and `optimize` share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.optimize.targets import check_precision
from dragoman.runtime import Bundle
from dragoman.runtime.format.manifest import Manifest, Precision, Target
from dragoman.runtime.format.records import PassRecord


def chosen_target(target: Target | None, precision: Precision) -> Target:
    """The cpu unless told otherwise, neutral for fp16 and bf16.

    Raises:
        DragomanError: the target has no such precision.
    """
    chosen = target or ("neutral" if precision in ("fp16", "bf16") else "cpu")
    check_precision(chosen, precision)
    return chosen


def optimize_into(
    directory: Path,
    bundle: Bundle,
    target: Target,
    precision: Precision,
    calibration: Path | None,
) -> Manifest:
    """Optimize for a target with a line of status, and show what each pass did.

    Raises:
        DragomanError: a text of the calibration is not one for this model; names the line.
    """
    sources = None
    if calibration is not None:
        from .texts import calibration_sources  # needs torch

        sources = calibration_sources(bundle, calibration)
    console = Console(stderr=True)
    with console.status("loading") as status:
        manifest = optimize_bundle(
            bundle,
            directory,
            target=target,
            precision=precision,
            calibration=sources,
            progress=lambda stage: status.update(f"{stage} ..."),
        )
    print_passes(manifest.passes)
    return manifest


def print_passes(passes: Sequence[PassRecord]) -> None:
    """What each pass did, and below it what it refused."""
    table = Table(title="passes", title_justify="left")
    for heading in ("graph", "pass", "matches", "refused", "nodes", "difference", "allowed"):
        table.add_column(
            heading,
            justify="left" if heading in ("graph", "pass") else "right",
            no_wrap=heading == "pass",
        )
    for record in passes:
        table.add_row(
            record.graph,
            record.name,
            str(record.matches),
            str(len(record.refusals)),
            f"{record.nodes_before} -> {record.nodes_after}",
            "not measured" if record.difference is None else f"{record.difference:.2g}",
            f"{record.tolerance:g}",
        )
    console = Console()
    console.print(table)
    for record in passes:
        for refusal in record.refusals:
            console.print(
                f"{record.graph}: {record.name} left {refusal.operator} {refusal.node}: "
                f"{refusal.reason}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
