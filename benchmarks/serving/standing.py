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
        best_peer, ratio: the best of other tools, and this one's goodput over its; None if there is
            none
    """

    at: Searched
    rate: float
    best_peer: str | None
    ratio: float | None


@dataclass(frozen=True)
class Standing:
    """
    Attributes:
        own: where p95 may be `SLOWER` times that of the tool's own requests alone; beside all peers
        own_in_fp32: the same beside peers that compute in fp32; None of a tool that does not
        common: where it may be `SLOWER` times that of the fastest tool's among those in fp32, or
            among all others; beside the peers of these
    """

    tool: str
    own: Goodput
    own_in_fp32: Goodput | None
    common: Goodput


def standings(found: Sequence[Searched], tools: Sequence[ServedTool]) -> list[Standing]:
    """Of the tools that were measured."""
    measured = {searched.tool for searched in found}
    working = [tool for tool in tools if tool.name in measured]
    peers = [tool for tool in working if tool.peer]

    def standing(tool: ServedTool) -> Standing:
        alike = [peer for peer in peers if peer.fp32 == tool.fp32]
        return Standing(
            tool.name,
            own=_goodput(tool, peers, found, lambda searched: searched.own),
            own_in_fp32=_goodput(tool, alike, found, lambda s: s.own) if tool.fp32 else None,
            common=_goodput(tool, alike, found, lambda searched: searched.common),
        )

    return list(map(standing, working))


def _goodput(
    tool: ServedTool,
    peers: Sequence[ServedTool],
    found: Sequence[Searched],
    rate_of: Callable[[Searched], float],
) -> Goodput:
    def best(name: str) -> Searched:
        return max((searched for searched in found if searched.tool == name), key=rate_of)

    own = best(tool.name)
    rates = {peer.name: rate_of(best(peer.name)) for peer in peers}
    name = max(rates, key=lambda peer: rates[peer], default=None)
    ratio = round(rate_of(own) / rates[name], 3) if name and rates[name] else None
    return Goodput(own, rate_of(own), name, ratio)
