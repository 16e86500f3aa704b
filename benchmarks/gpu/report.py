"""Stores the records of all parts in one file, and shows them as tables.

    python -m dragoman.benchmarks.gpu.report FILE... [--output FILE]

prints the records of one or several runs, and writes them to one file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.table import Table

from dragoman.errors import DragomanError

from .device import shortest_step

WIDTH = 150


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), help="Write the joined records here.")
def main(files: tuple[Path, ...], output: Path | None) -> None:
    """Show the last record of each part in FILES."""
    try:
        records = joined(files)
    except DragomanError as error:
        raise click.ClickException(str(error)) from error
    if output is not None:
        write_records(output, records)
    show(records)


def show(records: Records) -> None:
    """Print the results and failures of the parts."""
    console = Console(width=WIDTH)
    for part, record in records.items():
        for name, result in record.results.items():
            if name.startswith("gpu-"):
                _show_speed(console, result, record.device)
            elif name.startswith("parity-"):
                _show_rows(
                    console, f"{part}: {result['model']}, {result['inputs']}", result["rows"]
                )
            elif isinstance(result, list):
                _show_rows(console, part, result)
        _show_circumstances(console, part, record)
    for part, record in records.items():
        if record.failure:
            console.print(f"not complete: {part}: {record.failure}", soft_wrap=True, markup=False)


def _show_circumstances(console: Console, part: str, record: Record) -> None:
    device = record.device
    console.print(
        f"{part}: {device.get('gpu', 'unknown GPU')}, driver {device.get('driver', 'unknown')}, "
        f"{record.date}, {record.seconds:.0f} s",
        soft_wrap=True,
        markup=False,
    )


def _show_rows(console: Console, title: str, rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    table = Table(title=title, title_justify="left")
    headings = [heading for heading in rows[0] if heading != "shape"]
    for heading in headings:
        table.add_column(heading)
    for row in rows:
        table.add_row(*(str(row[heading]) for heading in headings))
    console.print(table)


def _show_speed(console: Console, comparison: dict[str, Any], device: dict[str, Any]) -> None:
    shape, length = comparison["shape"], comparison["source_length"]
    longest, new_tokens = comparison.get("longest_source") or length, comparison["new_tokens"]
    lengths = f"{length} to {longest}" if longest > length else f"{length}"
    table = Table(
        title=f"{shape}; source {lengths}, {new_tokens} new tokens; {comparison['machine']}",
        title_justify="left",
    )
    sizes = {m["batch_size"] for m in comparison["measurements"]}
    headings = ["", "batch", "ms/step", "range", "tokens/s", "floor/step", "same tokens"]
    anchors = any(published(shape, size) for size in sizes)
    if anchors:
        headings += ["NVIDIA's engines (removed)", "what replaced them"]
    for heading in headings:
        table.add_column(heading)
    for m in comparison["measurements"]:
        median, lowest, highest = m["ms_per_step"]
        floor = shortest_step(
            device,
            shape,
            m["contender"],
            m["batch_size"],
            source_length=(length + longest) / 2,
            new_tokens=new_tokens,
        )
        row = [
            m["contender"],
            str(m["batch_size"]),
            f"{median:.3f}",
            f"{lowest:.3f} - {highest:.3f}",
            f"{m['tokens_per_second']:,.0f}",
            f"{floor / median:.0%}" if floor else "",
            f"{m['identical']} of {m['batch_size']}",
        ]
        if anchors:
            theirs = published(shape, m["batch_size"]) or ()
            ours = m["tokens_per_second"]
            row += [f"{figure:,} ({ours / figure:.2f}x)" for figure in theirs] or ["", ""]
        table.add_row(*row)
    console.print(table)
    for failure in comparison["failures"]:
        console.print(
            f"not measured: {failure['contender']}: {failure['reason']}",
            soft_wrap=True,
            markup=False,
        )


FILE = "gpu.json"


@dataclass(frozen=True)
class Record:
    """The outcome of a part.

    Attributes:
        date: ISO 8601, UTC
        command: command that repeats the measurement
        seconds: duration
        device: GPU and driver, as written by the part "device"
        versions: versions of the packages in use
        failure: why the results are incomplete; "": complete
        results: results by file name
    """

    date: str
    command: str
    seconds: float
    device: dict[str, Any]
    versions: dict[str, str]
    failure: str
    results: dict[str, Any]


Records = dict[str, Record]
"""By the name of the part."""


def read_records(file: Path) -> Records:
    """Read the records of a file; empty if it does not exist.

    Raises:
        DragomanError: the file has no records of parts.
    """
    if not file.exists():
        return {}
    try:
        parts = json.loads(file.read_text(encoding="utf-8"))["parts"]
        return {name: Record(**record) for name, record in parts.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DragomanError(
            f"{file}: expected records of `make gpu`, found: {type(error).__name__} {error}"
        ) from error


def write_records(file: Path, records: Mapping[str, Record]) -> None:
    """Write the file atomically."""
    parts = {name: asdict(record) for name, record in records.items()}
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps({"parts": parts}, indent=1) + "\n", encoding="utf-8")
    partial.replace(file)


def joined(files: Iterable[Path]) -> Records:
    """Read the records of several files; later records replace earlier ones of the same part."""
    records: Records = {}
    for file in files:
        if not file.exists():
            raise DragomanError(f"{file}: expected records of `make gpu`, found no such file")
        records |= read_records(file)
    return records


class Published(NamedTuple):
    """NVIDIA's published figures on an H100, in new tokens per second.

    The model is bart-large-cnn in bf16, decoded greedily, with sources of 260 to 440 tokens and 128
    new tokens.

    Attributes:
        engines: TensorRT-LLM's TensorRT engines, removed since
        successor: TensorRT-LLM's PyTorch backend, which replaced the engines
    """

    engines: int
    successor: int


SHAPE = "bart-large-cnn"
BART_LARGE_CNN = {
    32: Published(12_611, 10_662),
    64: Published(22_007, 16_209),
    128: Published(31_544, 23_518),
}
"""By batch size."""


def published(shape: str, batch_size: int) -> Published | None:
    """Return NVIDIA's published figures for a shape and a batch size, if any."""
    known = re.search(rf" {SHAPE},", shape) is not None
    return BART_LARGE_CNN.get(batch_size) if known else None


if __name__ == "__main__":
    main()
