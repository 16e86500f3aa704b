"""Stores the records of all parts in one file, and shows them as tables.

    python -m dragoman.benchmarks.gpu.report FILE

shows a record on any machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import click

from dragoman.errors import DragomanError
from dragoman.files.regular_files import write_whole

from ..compare.record import Row, Table, distinct, failure_notes, print_all, table_of
from .device import bandwidth_share


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
def main(file: Path) -> None:
    """Show the records in FILE."""
    try:
        show(read_records(file))
    except DragomanError as error:
        raise click.ClickException(str(error)) from error


def show(records: Records) -> None:
    """Print the results and failures of the parts."""
    for part, record in records.items():
        tables: list[Table] = []
        lines: list[str] = []
        for name, result in record.results.items():
            if name.startswith("gpu-"):
                tables.append(_speed(result, record.device))
                lines += failure_notes(result)
                continue
            title, rows = part, result
            if name.startswith("parity-"):
                title, rows = f"{part}: {result['model']}, {result['inputs']}", result["rows"]
            if isinstance(rows, list):
                tables += _rows(title, rows)
                lines += _errors(rows)
        gpu, driver = (record.device.get(k, f"unknown {k}") for k in ("gpu", "driver"))
        circumstances = f"{part}: {gpu}, driver {driver}, {record.date}, {record.seconds:.0f} s"
        print_all(tables, [*lines, circumstances])
    failed = {part: record.failure for part, record in records.items() if record.failure}
    print_all([], [f"not complete: {part}: {failure}" for part, failure in failed.items()])


def _errors(rows: Sequence[Row]) -> list[str]:
    """Return the error of each row that has one; a cell of a table is too narrow for it."""
    return [
        f"{' '.join(str(cell) for cell in list(row.values())[:2])}: {row['error']}"
        for row in rows
        if row.get("error")
    ]


def _rows(title: str, rows: Sequence[Row]) -> Iterator[Table]:
    if rows:
        headings = [h for h in distinct(chain(*rows)) if h not in ("shape", "error")]
        cells = [[str(row.get(heading, "")) for heading in headings] for row in rows]
        yield Table(headings, cells, title)


COLUMNS = (
    ("", "{contender}"),
    ("batch", "{batch_size}"),
    ("ms/step", "{ms_per_step[0]:.3f}"),
    ("range", "{ms_per_step[1]:.3f} - {ms_per_step[2]:.3f}"),
    ("tokens/s", "{tokens_per_second:,.0f}"),
    ("of bandwidth", "{share:.0%}"),
    ("same tokens", "{identical} of {batch_size}"),
    ("NVIDIA's engines (removed)", "{published[0]:,} ({faster[0]:.2f}x)"),
    ("what replaced them", "{published[1]:,} ({faster[1]:.2f}x)"),
)


def _speed(comparison: Row, device: dict[str, Any]) -> Table:
    shape, length = comparison["shape"], comparison["source_length"]
    longest, new_tokens = comparison.get("longest_source") or length, comparison["new_tokens"]
    lengths = {"source_length": (length + longest) / 2, "new_tokens": new_tokens}
    rows = []
    for m in comparison["measurements"]:
        case = device, shape, m["contender"], m["batch_size"], m["ms_per_step"][0]
        theirs = BART_LARGE_CNN.get(m["batch_size"]) if " bart-large-cnn," in shape else None
        faster = theirs and [m["tokens_per_second"] / figure for figure in theirs]
        share = bandwidth_share(*case, **lengths)
        rows.append(m | {"share": share, "published": theirs, "faster": faster})
    spread = f"{length} to {longest}" if longest > length else f"{length}"
    title = f"{shape}; source {spread}, {new_tokens} new tokens; {comparison['machine']}"
    return table_of(rows, COLUMNS, title=title)


FILE = "gpu.json"


@dataclass(frozen=True)
class Record:
    """The outcome of a part; date, command and versions are as in `Circumstances`."""

    date: str
    command: str
    seconds: float
    device: dict[str, Any]
    """GPU and driver, as written by the part "device"."""
    versions: dict[str, str]
    failure: str
    """Why the results are incomplete; "": complete."""
    results: dict[str, Any]


Records = dict[str, Record]
"""By the name of the part."""


def read_records(file: Path) -> Records:
    """Read the records of a file; empty if it does not exist."""
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
    text = json.dumps({"parts": parts}, indent=1) + "\n"
    write_whole(file, lambda partial: partial.write_text(text, encoding="utf-8"))


BART_LARGE_CNN = {32: (12_611, 10_662), 64: (22_007, 16_209), 128: (31_544, 23_518)}
"""NVIDIA's published new tokens per second on an H100, by batch size: of TensorRT-LLM's engines,
removed since, and of its PyTorch backend, which replaced them. The model is bart-large-cnn in bf16,
decoded greedily, with sources of 260 to 440 tokens and 128 new tokens."""

if __name__ == "__main__":
    main()
