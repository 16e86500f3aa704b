"""Runs all checks and measurements on an NVIDIA GPU.

    python -m dragoman.benchmarks.gpu --output benchmarks/results

The parts describe the GPU, run TensorRT-RTX engines, check parity of every backend and precision,
compare latency with PyTorch and CTranslate2, and profile a decoding step. Every part runs in a
separate process. A part that fails or takes too long is reported, and the others continue. A part's
record is written when it ends.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from dragoman.errors import DragomanError

from ..compare.record import command_line, installed_versions, today
from .device import with_floor
from .parts import DEVICE, NO_TIME, PARTS, Part, run
from .report import FILE, Record, read_records, show, write_records

SECONDS = 540
"""For all parts together."""


@click.command()
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help=f"Folder to write the figures to, as {FILE} and plots. Existing records are "
    "kept, except those of parts that run again.",
)
@click.option(
    "--only", multiple=True, help="Only parts whose name contains this text; may be repeated."
)
@click.option("--resume", is_flag=True, help="Only parts without a complete record in --output.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=SECONDS,
    show_default=True,
    help="For all parts together.",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="PART=SECONDS",
    help="For parts whose name contains this text; may be repeated.",
)
def main(
    output: Path, only: tuple[str, ...], resume: bool, seconds: float, limits: tuple[str, ...]
) -> None:
    """Run all checks and measurements on an NVIDIA GPU."""
    end = time.monotonic() + seconds
    console = Console(stderr=True)
    try:
        records = read_records(output / FILE)
        parts = [
            part
            for part in _with_limits(PARTS, limits)
            if part.name == DEVICE
            or (_selected(part, only) and not (resume and _is_complete(records, part)))
        ]
    except DragomanError as error:
        raise click.ClickException(str(error)) from error
    device: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        for number, part in enumerate(parts):
            started = time.monotonic()
            left = end - started
            folder = Path(directory) / str(number)
            with console.status(f"{part.name} (at most {min(left, part.seconds):.0f} s)"):
                results, failure = run(part, folder, left)
            if part.name == DEVICE:
                device = results.get(DEVICE, {})
                if not device:
                    raise click.ClickException(f"there is no GPU to measure: {failure}")
            if "time_split" in results:
                results["time_split"] = [with_floor(row, device) for row in results["time_split"]]
            if failure:
                console.print(f"{part.name}: {failure}", markup=False)
            if failure == NO_TIME and part.name in records:
                continue  # keep the record of an earlier run
            records[part.name] = Record(
                date=today(),
                command=command_line("dragoman.benchmarks.gpu"),
                seconds=round(time.monotonic() - started, 1),
                device=device,
                versions=installed_versions(),
                failure=failure,
                results=results,
            )
            output.mkdir(parents=True, exist_ok=True)
            write_records(output / FILE, records)
            for plot in folder.rglob("*.png"):
                (output / plot.name).write_bytes(plot.read_bytes())
    show(records)


def _selected(part: Part, only: tuple[str, ...]) -> bool:
    return not only or any(text in part.name for text in only)


def _is_complete(records: dict[str, Record], part: Part) -> bool:
    return part.name in records and not records[part.name].failure


def _with_limits(parts: tuple[Part, ...], limits: tuple[str, ...]) -> list[Part]:
    """Return the parts with the time limits of `--limit`."""
    limited = list(parts)
    for limit in limits:
        text, _, seconds = limit.rpartition("=")
        matching = [index for index, part in enumerate(limited) if text in part.name]
        if not text or not seconds.isdecimal() or not matching:
            names = ", ".join(part.name for part in parts)
            raise DragomanError(
                f"--limit: expected PART=SECONDS with part of the name of {names}, found {limit}"
            )
        for index in matching:
            limited[index] = replace(limited[index], seconds=int(seconds))
    return limited


if __name__ == "__main__":
    main()
