"""Everything that needs an NVIDIA GPU, by one command, in under eight minutes.

    python -m dragoman.benchmarks.gpu --output benchmarks/results

Answers: which GPU is this, do TensorRT-RTX engines run on it at all, does every backend keep parity
in every precision, how fast are they compared with PyTorch and CTranslate2, and where does the time
of a step go? Every part runs in a separate process: one that fails or takes too long is reported,
and the others go on.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ..circumstances import command_line, today
from .floor import with_floor
from .parts import PARTS, run
from .report import show

SECONDS = 470
"""For all parts together."""


@click.command()
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder to write the figures to, as gpu.json and plots.",
)
@click.option(
    "--only", multiple=True, help="Only parts whose name contains this text; may be repeated."
)
def main(output: Path, only: tuple[str, ...]) -> None:
    """Check and measure everything that needs an NVIDIA GPU."""
    started = time.monotonic()
    console = Console(stderr=True)
    results: dict[str, Any] = {}
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as directory:
        for part in PARTS:
            if only and not any(name in part.name for name in only):
                continue
            left = SECONDS - (time.monotonic() - started)
            with console.status(f"{part.name} (at most {min(left, part.seconds):.0f} s)"):
                written, reason = run(part, Path(directory) / part.name.replace(", ", "-"), left)
            results |= written
            if reason:
                failures[part.name] = reason
                console.print(f"{part.name}: {reason}", markup=False)
            if part.name == "device" and not written:
                raise click.ClickException(f"there is no GPU to measure: {reason}")
        if "time_split" in results:
            device = results.get("device", {})
            results["time_split"] = [with_floor(row, device) for row in results["time_split"]]
        output.mkdir(parents=True, exist_ok=True)
        for plot in Path(directory).rglob("*.png"):
            (output / plot.name).write_bytes(plot.read_bytes())
    report = {
        "date": today(),
        "command": command_line("dragoman.benchmarks.gpu"),
        "seconds": round(time.monotonic() - started, 1),
        **results,
        "failures": failures,
    }
    (output / "gpu.json").write_text(json.dumps(report, indent=1) + "\n")
    show(results)
    for name, reason in failures.items():
        click.echo(f"not measured: {name}: {reason}")


if __name__ == "__main__":
    main()
