"""What stands below every table of a comparison."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from .circumstances import Circumstances
from .harness import Failure


def show_circumstances(console: Console, where: Circumstances, failures: Sequence[Failure]) -> None:
    """The machine, the command, and what could not be measured."""
    console.print(f"{where.machine}; load average before: {where.load_average:.2f}")
    console.print(where.command, soft_wrap=True, markup=False)
    for failure in failures:
        line = f"not measured: {failure.contender}: {failure.reason}"
        console.print(line, soft_wrap=True, markup=False)
