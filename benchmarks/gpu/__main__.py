"""Runs all checks and measurements on an NVIDIA GPU.

    python -m dragoman.benchmarks.gpu --output benchmarks/results

The parts describe the GPU, check parity and behaviour of every backend, and compare latency with
PyTorch, transformers and CTranslate2. Every part runs in a separate process. A part that fails or
takes too long is reported with what it has found, and the others continue. A part's record is
written when it ends.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from dragoman.errors import DragomanError

from ..compare.options import option
from ..compare.record import command_line, installed_versions, today
from .parts import DEVICE, NO_TIME, parts_on, run
from .report import FILE, Record, read_records, show, write_records

OUTPUT = (
    f"Folder to write the figures to, as {FILE} and plots. Existing records are kept, except those "
    "of parts that run again."
)
RESUME = "Only parts without a complete record in --output."
DRY = "cpu: the parts that can, on the smallest models, which tests the parts themselves."


@click.command(
    params=[
        option("--output", OUTPUT, kind=Path, required=True),
        option("--only", "Only parts whose name contains this text;", ()),
        option("--resume", RESUME, False, is_flag=True),
        option("--seconds", "For all parts together.", 540, click.FloatRange(0, min_open=True)),
        option("--device", DRY, "cuda", ["cuda", "cpu"]),
    ]
)
def main(output: Path, only: tuple[str, ...], resume: bool, seconds: float, device: str) -> None:
    """Run all checks and measurements on an NVIDIA GPU.

    CUDA_VISIBLE_DEVICES selects the GPU.
    """
    end = time.monotonic() + seconds
    console = Console(stderr=True)
    try:
        records = read_records(output / FILE)
    except DragomanError as error:
        raise click.ClickException(str(error)) from error
    done = {name for name, record in records.items() if resume and not record.failure}
    parts = [
        part
        for part in parts_on(device)
        if part.name == DEVICE
        or (part.name not in done and any(text in part.name for text in only or [""]))
    ]
    # Parts that have failed before come last.
    tried = {name for name, record in records.items() if record.failure not in ("", NO_TIME)}
    parts.sort(key=lambda part: part.name in tried - {DEVICE})
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        for number, part in enumerate(parts):
            started = time.monotonic()
            left = end - started
            folder = Path(directory) / str(number)
            with console.status(f"{part.name} (at most {min(left, part.seconds):.0f} s)"):
                results, failure = run(part, folder, left)
            if part.name == DEVICE:
                found = results.get(DEVICE, {})
                if not found:
                    raise click.ClickException(f"there is no GPU to measure: {failure}")
            if failure:
                console.print(f"{part.name}: {failure}", markup=False)
            if failure == NO_TIME and part.name in records:
                continue  # keep the record of an earlier run
            records[part.name] = Record(
                date=today(),
                command=command_line("dragoman.benchmarks.gpu"),
                seconds=round(time.monotonic() - started, 1),
                device=found,
                versions=installed_versions(),
                failure=failure,
                results=results,
            )
            output.mkdir(parents=True, exist_ok=True)
            write_records(output / FILE, records)
            for plot in folder.rglob("*.png"):
                (output / plot.name).write_bytes(plot.read_bytes())
    show(records)
    if device == "cpu" and any(records[part.name].failure for part in parts):
        raise click.ClickException("the dry run is not complete")


if __name__ == "__main__":
    main()
