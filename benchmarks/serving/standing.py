"""A tool at its best, beside the best of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .measuring import Searched
from .served import ServedTool


@dataclass(frozen=True)
class Goodput:
    """The highest rate at which requests are served in time.

    Attributes:
        at: of the arrangement in which it is highest
        best_peer, ratio: the best other tool, and this one's goodput over its; None if there is
            none
        best_fp32_peer, fp32_ratio: the same among those that compute in fp32; None of others
    """

    at: Searched
    rate: float
    best_peer: str | None
    ratio: float | None
    best_fp32_peer: str | None
    fp32_ratio: float | None


@dataclass(frozen=True)
class Standing:
    """
    Attributes:
        own: where p95 may be `SLOWER` times that of the tool's own requests alone
        common: where it may be `SLOWER` times that of the fastest tool's
    """

    tool: str
    own: Goodput
    common: Goodput


def standings(found: Sequence[Searched], tools: Sequence[ServedTool]) -> list[Standing]:
    """Of the tools that were measured."""
    measured = {searched.tool for searched in found}
    working = [tool for tool in tools if tool.name in measured]
    return [
        Standing(
            tool.name,
            _goodput(tool, found, working, lambda searched: searched.own),
            _goodput(tool, found, working, lambda searched: searched.common),
        )
        for tool in working
    ]


def _goodput(
    tool: ServedTool,
    found: Sequence[Searched],
    tools: Sequence[ServedTool],
    rate_of: Callable[[Searched], float],
) -> Goodput:
    def best(name: str) -> Searched:
        return max((searched for searched in found if searched.tool == name), key=rate_of)

    own = best(tool.name)

    def beside(others: Sequence[ServedTool]) -> tuple[str | None, float | None]:
        rates = {other.name: rate_of(best(other.name)) for other in others}
        name = max(rates, key=lambda other: rates[other], default=None)
        if name is None or not rates[name]:
            return name, None
        return name, round(rate_of(own) / rates[name], 3)

    peers = [other for other in tools if other.peer]
    exact = [peer for peer in peers if peer.fp32] if tool.fp32 else []
    return Goodput(own, rate_of(own), *beside(peers), *beside(exact))
