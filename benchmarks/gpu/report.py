"""The results of all parts as tables."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from .floor import shortest_step


def show(results: dict[str, Any]) -> None:
    """Print what the parts wrote, by the names of their files."""
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
    table = Table(title=f"{comparison['shape']}, {comparison['machine']}", title_justify="left")
    for heading in ("", "batch", "ms/step", "range", "tokens/s", "floor/step"):
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
