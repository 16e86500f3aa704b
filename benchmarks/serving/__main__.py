"""Latency and goodput of servers under load, beside each other.

    python -m dragoman.benchmarks.serving --output benchmarks/results
    python -m dragoman.benchmarks.serving --whisper WHISPER --clips tests/real/clips

Requests arrive as a Poisson process and are sent from another process of the machine, whatever
became of those before. Peers stand behind the HTTP layer of Dragoman's server, with a queue that
gives a worker all that has arrived, up to a batch. Every tool gets the arrangement of workers and
threads in which its goodput is highest.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from pathlib import Path

import click
from rich.console import Console

from dragoman.errors import DragomanError

from ..circumstances import circumstances
from ..harness import ContenderError, prepare
from ..models.options import shape_option, vocab_size_option
from ..taking_part import selected
from .measuring import SEED, SLOWER, measure
from .overhead import overhead_ms
from .report import Record, draw, show
from .standing import standings
from .workloads import Workload, speech_workload, text_workload

OVERHEAD_OF = "Dragoman int8"


@click.command()
@shape_option
@vocab_size_option
@click.option(
    "--whisper",
    type=click.Path(path_type=Path),
    help="Speech instead of texts: Whisper, of English alone, in CTranslate2's format.",
)
@click.option(
    "--clips",
    type=click.Path(path_type=Path),
    help="With --whisper: folder of audio files and transcripts.tsv.",
)
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
    whisper: Path | None,
    clips: Path | None,
    cores: int | None,
    seconds: float,
    only: tuple[str, ...],
    output: Path | None,
) -> None:
    """Compare how many requests a second servers answer in time."""
    if (whisper is None) != (clips is None):
        raise click.UsageError("--whisper and --clips go together")
    cores = cores or os.cpu_count() or 1
    load_average = os.getloadavg()[0]
    console = Console(stderr=True)
    try:
        with tempfile.TemporaryDirectory() as workspace, console.status("") as status:
            directory = Path(workspace)
            if whisper is not None and clips is not None:
                workload = speech_workload(whisper, clips)
            else:
                workload = text_workload(shape, vocab_size, directory)
            names = selected([tool.name for tool in workload.tools], only, kind="tool")
            tools = [tool for tool in workload.tools if tool.name in names]
            workload = dataclasses.replace(workload, tools=tools)

            def progress(stage: str) -> None:
                status.update(stage)
                if not console.is_terminal:
                    console.print(stage, soft_wrap=True)

            found, failures = measure(
                workload, cores=cores, seconds=seconds, directory=directory, progress=progress
            )
            added = None
            if whisper is None:
                progress("what HTTP and the queue add")
                try:
                    added = _overhead(workload, directory, cores)
                except ContenderError as error:
                    console.print(f"overhead not measured: {error}")
    except DragomanError as error:
        raise click.ClickException(str(error)) from error
    if not found:
        reasons = "; ".join(f"{failure.contender}: {failure.reason}" for failure in failures)
        raise click.ClickException(f"expected at least one tool that works, found none: {reasons}")
    record = Record(
        model=workload.model,
        requests=workload.requests,
        seconds=seconds,
        seed=SEED,
        slower=SLOWER,
        tools=standings(found, tools),
        entries=found,
        overhead_ms=added,
        failures=failures,
        circumstances=circumstances("dragoman.benchmarks.serving", load_average),
    )
    show(record)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        name = f"serving-{workload.name}-{cores}-cores"
        (output / f"{name}.json").write_text(record.to_json(), encoding="utf-8")
        draw(record).savefig(output / f"{name}.svg")


def _overhead(workload: Workload, directory: Path, cores: int) -> float | None:
    """
    Raises:
        ContenderError: the tool failed.
    """
    own = next((tool for tool in workload.tools if tool.name == OVERHEAD_OF), None)
    if own is None:
        return None
    bundle = prepare(own, workload.checkpoint, directory / "overhead")
    return overhead_ms(own, bundle, workload.bodies[:30], cores)


if __name__ == "__main__":
    main()
