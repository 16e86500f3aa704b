"""Counts and measures what each part of a model costs.

    python -m docs.tools.costs --output benchmarks/results

prints tables in Markdown: calculated multiply-accumulates and bytes, and times of each part of the
encoder and of a decoder step at several lengths from ONNX Runtime's profiler. The weights are
seeded random numbers. `docs.tools.pictures` draws the record.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Literal

import click

from docs.tools.costs.measuring import encoder_times, step_times
from docs.tools.costs.report import (
    FIRST,
    SHORT,
    CostRecord,
    Measured,
    counted_table,
    measured_table,
    series,
)
from dragoman.benchmarks.compare.options import SHAPE
from dragoman.benchmarks.compare.record import circumstances
from dragoman.benchmarks.models.shapes import describe
from dragoman.reference_model import ModelConfig
from dragoman.runtime import Bundle, read_bundle

COUNTED_LENGTHS = (32, 128, 512, 2048)
STEPS = 8
"""Consecutive steps that are measured for one position."""
MOST_RUNS = 7
"""ONNX Runtime's profiler keeps a million events."""


@click.command(params=[SHAPE])
@click.option(
    "--precision",
    type=click.Choice(["fp32", "int8", "int4"]),
    default="fp32",
    show_default=True,
    help="Of the bundle for the processor.",
)
@click.option(
    "--length",
    "lengths",
    type=click.IntRange(min=1),
    multiple=True,
    default=(16, 32, 64, 128, 256, 496),
    show_default=True,
    help="Tokens of the source, and positions of steps; may be repeated.",
)
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    multiple=True,
    default=(1, 8, 32),
    show_default=True,
    help="Sources that are decoded together; may be repeated.",
)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--runs",
    type=click.IntRange(min=1, max=MOST_RUNS),
    default=MOST_RUNS,
    show_default=True,
    help="The fastest is shown.",
)
@click.option(
    "--output", type=click.Path(path_type=Path, file_okay=False), help="Folder for the record."
)
def main(
    shape: str,
    precision: Literal["fp32", "int8", "int4"],
    lengths: tuple[int, ...],
    rows: tuple[int, ...],
    threads: int,
    runs: int,
    output: Path | None,
) -> None:
    """Count and measure what each part of a model costs."""
    load_average = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="dragoman-costs-") as scratch:
        bundle = _bundle(shape, precision, Path(scratch))
        config = _config(bundle)
        measured = _measure(bundle, lengths, rows, threads=threads, runs=runs)
    record = CostRecord(
        describe(shape, config.target_vocab_size),
        *(precision, threads, runs, config, measured),
        circumstances("docs.tools.costs", load_average),
    )
    counted = counted_table(config, COUNTED_LENGTHS)
    click.echo(f"Counted: million multiply-accumulates for one source\n\n{counted}\n")
    for chosen in series(record):
        click.echo(f"{chosen.title}, ms\n\n{measured_table(record, chosen)}\n")
    where = record.circumstances
    click.echo(f"{record.shape}, {precision}, {threads} threads; {where.machine}")
    click.echo(where.command)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        suffix = "" if precision == "fp32" else f"-{precision}"
        path = output / f"costs-{shape}{suffix}-{threads}-threads.json"
        path.write_text(record.to_json(), encoding="utf-8")
        click.echo(f"Wrote {path}")


def _bundle(shape: str, precision: str, scratch: Path) -> Bundle:
    from dragoman.benchmarks.models.bundles import bundle_of_checkpoint
    from dragoman.benchmarks.models.random_checkpoint import write_random_text_model

    write_random_text_model(shape, scratch / "checkpoint")
    directory = bundle_of_checkpoint(
        scratch / "checkpoint", scratch / "bundle", target="cpu", precision=precision
    )
    return read_bundle(directory)


def _config(bundle: Bundle) -> ModelConfig:
    values = dict(bundle.manifest.architecture)
    del values["family"]
    return ModelConfig.from_dict(values)


def _measure(
    bundle: Bundle, lengths: tuple[int, ...], rows: tuple[int, ...], *, threads: int, runs: int
) -> list[Measured]:
    """Measure the encoder and a step at each length, and a step with each number of rows."""
    times = encoder_times(bundle, lengths, threads=threads, runs=runs)
    measured = [Measured("encoder", 1, n, 0, ms) for n, ms in zip(lengths, times, strict=True)]
    for sources, positions, together in (
        (lengths, (FIRST,), 1),
        ((SHORT,), lengths, 1),
        *(((SHORT,), (FIRST,), count) for count in rows if count > 1),
    ):
        found = step_times(
            bundle, sources, positions, rows=together, threads=threads, runs=runs, window=STEPS
        )
        measured += [Measured("step", together, *where, ms) for where, ms in found.items()]
    return measured


if __name__ == "__main__":
    main()
