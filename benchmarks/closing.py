"""What stands below every table of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


def standing(contender: str, peers: str, ratios: Mapping[str, float]) -> str:
    """How a contender stands against the best of some peers.

    Args:
        peers: which they are
        ratios: at each case, which the name describes; at least one
    """
    least = min(ratios, key=ratios.__getitem__)
    return (
        f"{contender} against the best {peers}: {ratios[least]:.2f} to {max(ratios.values()):.2f} "
        f"times as fast, least at {least}"
    )
