"""Throughput at a queue of requests of unequal length, interleaved in one run.

    python -m dragoman.benchmarks.queue --output benchmarks/results

Slots decode all requests in one call, in which those that wait take the places of those that have
ended. Frozen batches are calls with as many requests each, those with sources of similar length
together: rows that have ended leave, and none enters. The weights are random but seeded, and never
choose the end token: every request gets exactly the number of tokens that was drawn for it.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click
from rich.console import Console

from dragoman.errors import DragomanError

from ..circumstances import circumstances
from ..harness import Interpreter
from ..models.options import shape_option, vocab_size_option
from ..models.shapes import SHAPES, describe
from .contenders import contenders
from .measuring import measure
from .report import QueueComparison, show
from .requests import draw_requests

SOURCE_LENGTHS, OUTPUT_LENGTHS = (5, 60), (5, 80)


@click.command()
@shape_option
@vocab_size_option
@click.option(
    "--requests",
    "count",
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    help="Number of requests.",
)
@click.option(
    "--arrivals",
    type=click.FloatRange(min=0, min_open=True),
    help="Mean number of requests that arrive in a second [default: all wait at the beginning].",
)
@click.option(
    "--batch-size",
    "max_batch_sizes",
    type=click.IntRange(min=1),
    multiple=True,
    default=(8, 32),
    show_default=True,
    help="Requests that are decoded together at most; may be repeated.",
)
@click.option(
    "--precision",
    "precisions",
    type=click.Choice(["fp32", "int8", "int4"]),
    multiple=True,
    default=("fp32", "int8"),
    show_default=True,
    help="May be repeated.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    multiple=True,
    default=(1, 2),
    show_default=True,
    help="Threads of every contender; may be repeated, and each takes part with each number.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Counted rounds; a warm-up comes before them.",
)
@click.option(
    "--before",
    type=click.Path(path_type=Path),
    help="Source tree of another version of Dragoman, whose frozen batches take part.",
)
@click.option(
    "--output", type=click.Path(path_type=Path), help="Folder to write the figures to, as JSON."
)
def main(
    shape: str,
    vocab_size: int | None,
    count: int,
    arrivals: float | None,
    max_batch_sizes: tuple[int, ...],
    precisions: tuple[str, ...],
    threads: tuple[int, ...],
    rounds: int,
    before: Path | None,
    output: Path | None,
) -> None:
    """Compare a batch that is refilled with frozen batches, on requests of unequal length."""
    from ..models.random_checkpoint import write_random_text_model

    vocab_size = vocab_size or SHAPES[shape].vocab_size
    requests = draw_requests(
        count,
        tokens=(1, vocab_size - 1),  # without the end token (first) and padding (last)
        source_lengths=SOURCE_LENGTHS,
        output_lengths=OUTPUT_LENGTHS,
        per_second=arrivals,
    )
    load_average = os.getloadavg()[0]
    console = Console(stderr=True)
    try:
        earlier = Interpreter.of_tree(before) if before else None
        with tempfile.TemporaryDirectory() as workspace, console.status("") as status:
            checkpoint = Path(workspace) / "checkpoint"
            write_random_text_model(shape, checkpoint, vocab_size=vocab_size)
            measurements, failures = measure(
                contenders(list(dict.fromkeys(precisions)), earlier),
                requests,
                max_batch_sizes=list(dict.fromkeys(max_batch_sizes)),
                checkpoint=checkpoint,
                directory=Path(workspace),
                threads=list(dict.fromkeys(threads)),
                rounds=rounds,
                progress=status.update,
            )
    except DragomanError as error:
        raise click.ClickException(str(error)) from error
    comparison = QueueComparison(
        shape=describe(shape, vocab_size),
        requests=count,
        source_lengths=SOURCE_LENGTHS,
        output_lengths=OUTPUT_LENGTHS,
        arrivals_per_second=arrivals,
        threads=threads,
        rounds=rounds,
        measurements=measurements,
        failures=failures,
        circumstances=circumstances(
            "dragoman.benchmarks.queue",
            load_average,
            trees={"dragoman, before": before} if before else {},
        ),
    )
    show(comparison)
    if not measurements:
        raise click.ClickException("expected at least one contender that works, found none")
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        kind = "queue" if arrivals is None else "arrivals"
        file = output / f"{kind}-{shape}-{'-'.join(map(str, threads))}-threads.json"
        file.write_text(comparison.to_json(), encoding="utf-8")


if __name__ == "__main__":
    main()
