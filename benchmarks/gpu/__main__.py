"""Everything that takes an NVIDIA GPU to know, by one command, in under eight minutes.

    python -m dragoman.benchmarks.gpu --output benchmarks/results

Every part runs in a process of its own, so that what is missing, fails or takes too long is
reported and the others go on: what GPU this is, whether TensorRT-RTX engines run on it at all,
parity of every backend in every precision, speed beside PyTorch and CTranslate2, and where the
time of a step goes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

SECONDS = 470
"""For all parts together."""


@dataclass(frozen=True)
class Part:
    """A step of the whole.

    Attributes:
        seconds: the most it may take
        module, arguments: what is run; it writes JSON files into the folder that `--output` names
    """

    name: str
    seconds: int
    module: str
    arguments: tuple[str, ...] = ()


def _compare(shape: str, seconds: int, *only: str) -> Part:
    sizes = [word for size in (1, 8, 32, 128) for word in ("--batch-size", str(size))]
    chosen = [word for name in only for word in ("--only", name)]
    options = ("--device", "cuda", "--shape", shape, "--rounds", "3", "--no-quality")
    return Part(
        f"speed, {shape}", seconds, "dragoman.benchmarks.compare", (*options, *sizes, *chosen)
    )


PARTS = (
    Part("device", 20, "dragoman.benchmarks.gpu.facts"),
    Part("engines", 60, "dragoman.benchmarks.gpu.engines"),
    Part("parity", 110, "dragoman.benchmarks.gpu.parity"),
    _compare("big", 120, "fp16", "float16"),
    Part("where the time goes", 70, "dragoman.benchmarks.gpu.time_split"),
    _compare("base", 100, "fp16", "float16"),
)
"""Precisions below fp16 take minutes to prepare; all of them are measured by
`python -m dragoman.benchmarks.compare --device cuda --shape big`."""


@click.command()
@click.option("--output", type=click.Path(path_type=Path), required=True, help="For the figures.")
@click.option("--only", multiple=True, help="Parts whose name holds this; may be repeated.")
def main(output: Path, only: tuple[str, ...]) -> None:
    """Check and measure everything that takes a GPU."""
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
                found, why = _run(part, Path(directory) / part.name.replace(", ", "-"), left)
            results |= found
            if why:
                failures[part.name] = why
                console.print(f"{part.name}: {why}", markup=False)
            if part.name == "device" and not found:
                raise click.ClickException(f"there is no GPU to measure: {why}")
        if "time_split" in results:
            results["time_split"] = [_with_floor(r, results) for r in results["time_split"]]
        output.mkdir(parents=True, exist_ok=True)
        for picture in Path(directory).rglob("*.png"):
            (output / picture.name).write_bytes(picture.read_bytes())
    report = {
        "date": datetime.now(UTC).date().isoformat(),
        "command": " ".join(["python -m dragoman.benchmarks.gpu", *sys.argv[1:]]),
        "seconds": round(time.monotonic() - started, 1),
        **results,
        "failures": failures,
    }
    (output / "gpu.json").write_text(json.dumps(report, indent=1) + "\n")
    _show(results)
    for name, why in failures.items():
        click.echo(f"not measured: {name}: {why}")


def _run(part: Part, directory: Path, left: float) -> tuple[dict[str, Any], str]:
    """What a part wrote, by the name of the file, and why there is not more."""
    directory.mkdir()
    command = [sys.executable, "-m", part.module, *part.arguments, "--output", str(directory)]
    if left < 5:
        return {}, "no time was left"
    seconds = min(left, part.seconds)
    log = directory / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = process.wait(timeout=seconds)
            why = "" if status == 0 else f"exit status {status}"
        except subprocess.TimeoutExpired:
            why = f"took more than {seconds:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):  # what it started ends with it
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    lines = log.read_text(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return _written(directory), f"{why}: {last}" if why else ""


def _written(directory: Path) -> dict[str, Any]:
    """Files that are whole; a part that was ended may have left half of one."""
    found = {}
    for file in sorted(directory.glob("*.json")):
        with contextlib.suppress(ValueError):
            found[file.stem] = json.loads(file.read_text())
    return found


def _with_floor(row: dict[str, Any], results: dict[str, Any]) -> dict[str, Any]:
    from dragoman.benchmarks.gpu.facts import shortest_step
    from dragoman.benchmarks.gpu.time_split import beyond_the_floor

    device = results.get("device", {})
    floor = shortest_step(device, row["shape"], row["contender"], row["batch"])
    return beyond_the_floor(row, floor)


def _show(results: dict[str, Any]) -> None:
    console = Console()
    for name in ("engines", "parity", "time_split"):
        rows = results.get(name, [])
        if rows:
            table = Table(title=name.replace("_", " "), title_justify="left")
            headings = [heading for heading in rows[0] if heading != "shape"]
            for heading in headings:
                table.add_column(heading)
            for row in rows:
                table.add_row(*(str(row[heading]) for heading in headings))
            console.print(table)
    for name, comparison in results.items():
        if name.startswith("gpu-"):
            _show_speed(console, comparison, results.get("device", {}))


def _show_speed(console: Console, comparison: dict[str, Any], device: dict[str, Any]) -> None:
    from dragoman.benchmarks.gpu.facts import shortest_step

    table = Table(title=f"{comparison['shape']}, {comparison['machine']}", title_justify="left")
    for heading in ("", "batch", "ms/step", "range", "tokens/s", "of the floor"):
        table.add_column(heading)
    for m in comparison["measurements"]:
        median, lowest, highest = m["ms_per_step"]
        floor = shortest_step(device, comparison["shape"], m["contender"], m["batch_size"])
        table.add_row(
            m["contender"],
            str(m["batch_size"]),
            f"{median:.3f}",
            f"{lowest:.3f} - {highest:.3f}",
            f"{m['tokens_per_second']:,.0f}",
            f"{floor / median:.0%}" if floor else "",
        )
    console.print(table)
    for failure in comparison["failures"]:
        console.print(f"not measured: {failure['contender']}: {failure['reason']}", markup=False)


if __name__ == "__main__":
    main()
