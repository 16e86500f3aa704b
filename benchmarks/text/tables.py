"""The tables of a record, as they stand in the documentation.

    python -m dragoman.benchmarks.text.tables benchmarks/results/cpu-base-4-beams-1-2-threads.json

prints a table with a row for each contender: milliseconds per step at every number of threads, the
best in bold, and ratios between the best of each tool, and between all with one thread. Others say
what each tool loads and holds, and how far Dragoman is from the floor. With beams, another says
what a step costs over a greedy one of as many rows; with another version, what a call costs over
one of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ..markdown import markdown

Row = Mapping[str, Any]
"""A measurement, or a cost, of a record."""

COST_NAMES = {"step": "ms per step", "call": "ms per call"}


@click.command()
@click.argument("record", type=click.Path(path_type=Path))
def main(record: Path) -> None:
    """Print the tables of RECORD, a file that dragoman.benchmarks.compare wrote."""
    try:
        found = json.loads(record.read_text(encoding="utf-8"))
        click.echo("\n\n".join(tables(found)))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise click.ClickException(
            f"{record}: expected a record of dragoman.benchmarks.compare with several numbers of "
            f"threads, found: {type(error).__name__} {error}"
        ) from error


def tables(record: Mapping[str, Any]) -> list[str]:
    """In Markdown."""
    made = [_speed(record)]
    if record["footprints"]:
        made.append(_footprints(record["footprints"]))
    if "floors" in record:
        made.append(_floors(record["floors"], record["measurements"]))
    costs = record.get("costs", [])
    made += [
        _costs([row for row in costs if row["of"] == of], name)
        for of, name in COST_NAMES.items()
        if any(row["of"] == of for row in costs)
    ]
    return made


def _speed(record: Mapping[str, Any]) -> str:
    rows: Sequence[Row] = record["measurements"]
    threads: Sequence[int] = record["threads"]
    sizes = _distinct(row["batch_size"] for row in rows)
    headings = [""]
    for size in sizes:
        headings += [f"{_count(size, 'source')}, {_count(n, 'thread')}" for n in threads]
    fewest = min(threads)
    alike = "thread_ratio" in rows[0]
    headings += ["against the best peer", "in fp32"]
    headings += [f"with {_count(fewest, 'thread')} for all", "in fp32"] if alike else []
    headings.append("same tokens")
    lines = []
    for contender in _distinct(row["contender"] for row in rows):
        own = [row for row in rows if row["contender"] == contender]
        cells = [contender]
        best: list[Row] = []
        for size in sizes:
            at_size = {row["threads"]: row for row in own if row["batch_size"] == size}
            best.append(min(at_size.values(), key=lambda row: row["ms_per_step"][0]))
            for number in threads:
                cell = _spread(at_size[number]["ms_per_step"])
                cells.append(f"**{cell}**" if at_size[number] is best[-1] else cell)
        same = sum(row["identical"] for row in best)
        cells += [_ratios(best, "ratio"), _ratios(best, "fp32_ratio")]
        if alike:
            few = [row for row in own if row["threads"] == fewest]
            cells += [_ratios(few, "thread_ratio"), _ratios(few, "fp32_thread_ratio")]
        cells.append(f"{same} of {sum(sizes)}")
        lines.append(cells)
    return markdown(headings, lines)


def _footprints(rows: Sequence[Row]) -> str:
    """With each number of threads; files are the same."""
    threads = _distinct(row["threads"] for row in rows)
    headings = ["", *(f"load, {_count(n, 'thread')}" for n in threads)]
    headings += [f"peak memory, {_count(n, 'thread')}" for n in threads]
    lines = []
    for contender in _distinct(row["contender"] for row in rows):
        own = [row for row in rows if row["contender"] == contender]
        loads = [f"{row['load_seconds']:.2f} s" for row in own]
        held = [f"{row['peak_memory_mb']:,.0f} MB" for row in own]
        lines.append([contender, *loads, *held, f"{own[0]['disk_mb']:,.0f} MB"])
    return markdown([*headings, "disk"], lines)


def _floors(floors: Sequence[Row], rows: Sequence[Row]) -> str:
    """The shortest step, and its share of what a step takes."""
    medians = {
        (row["contender"], row["threads"], row["batch_size"]): row["ms_per_step"][0] for row in rows
    }
    sizes = _distinct(floor["batch_size"] for floor in floors)
    lines = []
    for contender, threads in _distinct((f["contender"], f["threads"]) for f in floors):
        cells = [contender, str(threads)]
        for floor in floors:
            case = (contender, threads, floor["batch_size"])
            if (floor["contender"], floor["threads"]) == case[:2]:
                cells.append(f"{floor['ms']:.2f} of {medians[case]:.2f} ms")
                cells[-1] += f", {floor['ms'] / medians[case]:.0%}"
        lines.append(cells)
    return markdown(["", "threads", *(_count(size, "source") for size in sizes)], lines)


def _costs(rows: Sequence[Row], name: str) -> str:
    sizes = _distinct(row["batch_size"] for row in rows)
    headings = ["", "threads"]
    headings += [f"{_count(size, 'source')}: {name}, compared, ratio" for size in sizes]
    lines = []
    for contender, threads in _distinct((row["contender"], row["threads"]) for row in rows):
        found = {
            row["batch_size"]: row
            for row in rows
            if (row["contender"], row["threads"]) == (contender, threads)
        }
        cells = [
            f"{found[size]['ms'][0]:.2f}, {found[size]['compared_ms'][0]:.2f}, "
            f"{_spread(found[size]['ratio'], 3)}"
            for size in sizes
        ]
        lines.append([contender, str(threads), *cells])
    return markdown(headings, lines)


def _ratios(best: Sequence[Row], key: str) -> str:
    """At every batch size, such as "3.10x / 2.05x"; nothing if there is no peer."""
    ratios = [row[key] for row in best]
    return "" if None in ratios else " / ".join(f"{ratio:.2f}x" for ratio in ratios)


def _spread(values: Sequence[float], decimals: int = 2) -> str:
    median, lowest, highest = (f"{value:.{decimals}f}" for value in values)
    return f"{median} ({lowest}\N{EN DASH}{highest})"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number > 1 else ''}"


def _distinct(values: Iterable[Any]) -> list[Any]:
    """In the order of their first occurrence."""
    return list(dict.fromkeys(values))


if __name__ == "__main__":
    main()
