"""Records of measurements, their circumstances, and their tables on a terminal and in Markdown."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..machine import machine
from ..processes import Interpreter, call_in
from .rounds import Entrant

Record = Mapping[str, Any]
"""A record as it is read from JSON: the figures, what failed, and the circumstances."""

Row = Mapping[str, Any]
"""One measurement of a record: figures by name."""

PACKAGES = (
    *("dragoman", "ctranslate2", "fastembed", "faster-whisper", "numpy", "cuda-bindings"),
    *("openai-whisper", "pywhispercpp", "onnxruntime", "nncf", "onnxruntime-genai"),
    *("onnxruntime-gpu", "openvino", "openvino-genai", "tensorrt", "tensorrt_rtx", "optimum"),
    *("optimum-intel", "optimum-onnx", "sentence-transformers", "torch", "transformers"),
)

MINIMUM_WIDTH = 150
"""Characters of a line, to which narrower terminals fold tables."""


@dataclass(frozen=True)
class Circumstances:
    """The machine, versions, date and command of a measurement."""

    machine: str
    load_average: float
    """Load average of the machine in the minute before the measurement."""
    versions: dict[str, str]
    date: str
    """ISO 8601, UTC."""
    command: str


def circumstances(
    module: str,
    load_average: float,
    *,
    gpu: str | None = None,
    environments: Iterable[Interpreter] = (),
    trees: Mapping[str, Path] | None = None,
) -> Circumstances:
    """Return the circumstances of a measurement by this process, run as a module.

    The versions include those of other environments and source trees in use.
    """
    versions = installed_versions()
    for environment in environments:
        versions = call_in(environment, installed_versions) | versions
    for name, tree in (trees or {}).items():
        command = [shutil.which("git") or "git", "-C", str(tree), "describe", "--always"]
        command += ["--dirty", "--exclude", "*"]
        described = subprocess.run(command, capture_output=True, text=True, check=False)
        versions[name] = described.stdout.strip() or "unknown commit"
    where = "; ".join([*([gpu] if gpu else []), machine()])
    return Circumstances(where, load_average, versions, today(), command_line(module))


def command_line(module: str) -> str:
    """Return the shell command that runs this process."""
    return shlex.join(["python", "-m", module, *sys.argv[1:]])


def today() -> str:
    """Return the date in ISO 8601, UTC."""
    return datetime.now(UTC).date().isoformat()


def installed_versions() -> dict[str, str]:
    """Return the versions of the installed `PACKAGES`."""
    from dragoman.tested_versions import installed_version  # which an older tree may lack

    return {name: version for name in PACKAGES if (version := installed_version(name))}


def as_record(figures: Mapping[str, Any], where: Circumstances) -> dict[str, Any]:
    """Convert figures, which may have dataclasses, to JSON data."""
    record: dict[str, Any] = json.loads(json.dumps({**figures, **asdict(where)}, default=asdict))
    return record


def write_json(record: Record | Sequence[Row], path: Path) -> None:
    """Write a record, or rows of one, to a file."""
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Table:
    """A table of texts."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    """Cells in the order of the headings; an empty row is a separator on a terminal."""
    title: str = ""
    left: int = 1

    def markdown(self) -> str:
        """Return the table in Markdown, without its title."""
        lines = [self.headings, ["---"] * len(self.headings), *(row for row in self.rows if row)]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def table_of(
    rows: Iterable[Row],
    columns: Iterable[tuple[str, str]],
    *,
    title: str = "",
    section: Sequence[str] = (),
    left: int = 1,
) -> Table:
    """Return a table of measurements without empty columns, grouped by the fields of `section`.

    Columns are headings with format strings for a row; without its figure, a cell is empty.
    """

    def cell(text: str, row: Row) -> str:
        try:
            return text.format_map(row)
        except TypeError:  # None has no decimals
            return ""

    lines: list[list[str]] = []
    pairs = list(columns)
    for group in sections(rows, *section):
        lines += [[cell(text, row) for _, text in pairs] for row in group] + [[]] * bool(section)
    kept = [n for n in range(len(pairs)) if any(line and line[n] for line in lines)]
    shown = [[line[n] for n in kept if line] for line in lines]
    return Table([pairs[n][0] for n in kept], shown, title, left)


def sections(rows: Iterable[Row], *fields: str) -> Iterator[list[Row]]:
    """Group rows by the values of fields, in the order of first occurrence."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[field] for field in fields), []).append(row)
    yield from groups.values()


def pivoted(
    rows: Iterable[Row],
    fields: Sequence[str],
    *cells: Callable[[Row], str],
    more: Callable[[Sequence[Row]], Iterable[str]] = lambda own: (),
) -> list[list[str]]:
    """Return a line for each combination of fields.

    It has the cells of all rows, one function after the other, and `more` cells.
    """
    return [
        [*(str(own[0][f]) for f in fields), *(c(row) for c in cells for row in own), *more(own)]
        for own in sections(rows, *fields)
    ]


def print_all(tables: Iterable[Table], lines: Iterable[str]) -> None:
    """Print tables, and lines below them."""
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console(width=max(Console().width, MINIMUM_WIDTH))
    for table in tables:
        drawn = RichTable(title=table.title, title_justify="left")
        for number, heading in enumerate(table.headings):
            left = number < table.left
            drawn.add_column(heading, justify="left" if left else "right", no_wrap=left)
        for row in table.rows:
            drawn.add_row(*row) if row else drawn.add_section()
        console.print(drawn)
    for line in lines:
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def failure_notes(record: Record) -> Iterator[str]:
    """Yield what was not measured, and why."""
    for failure in record.get("failures", ()):
        yield f"not measured: {failure['contender']}: {failure['reason']}"


def footprint_notes(record: Record) -> Iterator[str]:
    """Yield load time, memory and disk size of each contender, one line each."""
    text = "load {load_seconds:.2f} s, peak memory {peak_memory_mb:.0f} MB, disk {disk_mb:.0f} MB"
    for row in record["footprints"]:
        yield f"{Entrant(row['contender'], row['threads'])}: {text.format_map(row)}"


def standings(
    name: str, rows: Sequence[Row], kinds: Mapping[str, str], case: Callable[[Row], str]
) -> Iterator[str]:
    """Describe how a contender compares with the best peers of several kinds, where there are any.

    Rows have the figures of `rounds.against`; kinds describe peers, by the prefix of their figures.
    """
    for prefix, peers in kinds.items():
        ratios = {}
        for row in rows:
            peer = row.get(f"best_{prefix}peer")
            if ratio := row.get(f"{prefix}ratio"):
                ratios[case(row) + (f", against {peer}" if peer else "")] = ratio
        if ratios:
            least = min(ratios, key=ratios.__getitem__)
            yield (
                f"{name} against the best {peers}: {ratios[least]:.2f} to "
                f"{max(ratios.values()):.2f} times as fast, least at {least}"
            )


def ranged(values: Sequence[float], decimals: int = 2) -> str:
    """Format a spread, such as "2.00 (1.50-3.00)"."""
    median, lowest, highest = (f"{value:,.{decimals}f}" for value in values)
    return f"{median} ({lowest}\N{EN DASH}{highest})"


def distinct(values: Iterable[Any]) -> list[Any]:
    """Return the distinct values in the order of first occurrence."""
    return list(dict.fromkeys(values))
