"""The tables of a record, as they stand in the documentation.

    python -m dragoman.benchmarks.encoding.tables benchmarks/results/encoding.json

prints one table for each number of threads: milliseconds per call of every contender, the best in
bold, and the cosine of its vectors with the reference's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ..markdown import markdown

Row = Mapping[str, Any]
"""A measurement of a record."""


@click.command()
@click.argument("record", type=click.Path(path_type=Path))
def main(record: Path) -> None:
    """Print the tables of RECORD, a file that dragoman.benchmarks.encoding wrote."""
    try:
        found = json.loads(record.read_text(encoding="utf-8"))
        click.echo("\n\n".join(tables(found)))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise click.ClickException(
            f"{record}: expected a record of dragoman.benchmarks.encoding, found: "
            f"{type(error).__name__} {error}"
        ) from error


def tables(record: Mapping[str, Any]) -> list[str]:
    """In Markdown."""
    rows: Sequence[Row] = record["measurements"]
    return [_table([row for row in rows if row["threads"] == n], n) for n in record["threads"]]


def _table(rows: Sequence[Row], threads: int) -> str:
    cases = list(dict.fromkeys((row["length"], row["batch_size"]) for row in rows))
    best = {
        case: min(row["ms_per_call"][0] for row in rows if _case(row) == case) for case in cases
    }
    lines = []
    for contender in dict.fromkeys(row["contender"] for row in rows):
        own = {_case(row): row for row in rows if row["contender"] == contender}
        cells = [_cell(own[case], best[case]) for case in cases]
        mean = sum(row["cosine"] for row in own.values()) / len(own)
        lowest = min(row["lowest_cosine"] for row in own.values())
        lines.append([contender, *cells, f"{mean:.4f}", f"{lowest:.4f}"])
    headings = [f"{length} tokens, batch {size}" for length, size in cases]
    first = f"{threads} thread{'s' if threads > 1 else ''}, ms per call"
    return markdown([first, *headings, "cosine", "lowest"], lines)


def _case(row: Row) -> tuple[int, int]:
    return row["length"], row["batch_size"]


def _cell(row: Row, best: float) -> str:
    median, lowest, highest = row["ms_per_call"]
    cell = f"{median:.2f} ({lowest:.2f}\N{EN DASH}{highest:.2f})"
    return f"**{cell}**" if median == best else cell


if __name__ == "__main__":
    main()
