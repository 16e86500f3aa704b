"""Latency and goodput of servers under load, beside each other.

    python -m dragoman.benchmarks.serving --output benchmarks/results

Requests arrive as a Poisson process and are sent from another process of the machine, whatever
became of those before. Peers stand behind the HTTP layer of Dragoman's server, with a queue that
gives a worker all that has arrived, up to a batch. Every tool gets the arrangement of workers and
threads in which its goodput is highest.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click
from rich.console import Console

from dragoman.errors import DragomanError

from ..circumstances import circumstances
from ..harness import ContenderError, prepare
from ..models.options import shape_option, vocab_size_option
from ..models.shapes import SHAPES, describe
from ..taking_part import selected
from ..throughput.work import CALIBRATED_ON, LONGEST_OUTPUT, SOURCE_LENGTHS, draw_sources
from .measuring import SEED, SLOWER, measure
from .overhead import overhead_ms
from .report import Record, draw, show
from .served import tools

MEAN_OUTPUT = 32
SOURCES = 500


@click.command()
@shape_option
@vocab_size_option
@click.option("--cores", type=click.IntRange(min=1), help="To arrange [default: all].")
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=15.0,
    show_default=True,
    help="That requests arrive at each rate.",
)
@click.option(
    "--only",
    multiple=True,
    help="Only tools whose name contains this text (ignoring case); may be repeated.",
)
@click.option(
    "--output", type=click.Path(path_type=Path), help="Folder for the figures: JSON and a picture."
)
def main(
    shape: str,
    vocab_size: int | None,
    cores: int | None,
    seconds: float,
    only: tuple[str, ...],
    output: Path | None,
) -> None:
    """Compare how many requests a second servers answer in time."""
    from ..throughput.checkpoint import write_ending_text_model

    vocab_size = vocab_size or SHAPES[shape].vocab_size
    cores = cores or os.cpu_count() or 1
    load_average = os.getloadavg()[0]
    console = Console(stderr=True)
    try:
        tokens = (1, vocab_size - 1)  # without end token and padding
        known = tools(draw_sources(CALIBRATED_ON, tokens, seed=99))
        names = selected([tool.name for tool in known], only, kind="tool")
        chosen = [tool for tool in known if tool.name in names]
        sources = draw_sources(SOURCES, tokens)
        with tempfile.TemporaryDirectory() as workspace, console.status("") as status:
            directory = Path(workspace)
            checkpoint = directory / "checkpoint"
            write_ending_text_model(
                shape, checkpoint, vocab_size=vocab_size, mean_length=MEAN_OUTPUT
            )
            served, failures = measure(
                chosen,
                sources,
                max_new_tokens=LONGEST_OUTPUT,
                cores=cores,
                seconds=seconds,
                checkpoint=checkpoint,
                directory=directory,
                progress=status.update,
            )
            added = None
            own = next((tool for tool in chosen if tool.name == "Dragoman int8"), None)
            if own is not None:
                status.update("what HTTP and the queue add")
                try:
                    bundle = prepare(own, checkpoint, directory / "overhead")
                    added = overhead_ms(own, bundle, sources[:30], LONGEST_OUTPUT, cores)
                except ContenderError as error:
                    console.print(f"overhead not measured: {error}")
    except DragomanError as error:
        raise click.ClickException(str(error)) from error
    record = Record(
        shape=describe(shape, vocab_size),
        source_lengths=SOURCE_LENGTHS,
        longest_output=LONGEST_OUTPUT,
        seconds=seconds,
        seed=SEED,
        slower=SLOWER,
        tools=served,
        overhead_ms=added,
        failures=failures,
        circumstances=circumstances("dragoman.benchmarks.serving", load_average),
    )
    show(record)
    if not served:
        raise click.ClickException("expected at least one tool that works, found none")
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        name = f"serving-{shape}-{cores}-cores"
        (output / f"{name}.json").write_text(record.to_json(), encoding="utf-8")
        draw(record).savefig(output / f"{name}.svg")


if __name__ == "__main__":
    main()
