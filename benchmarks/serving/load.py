"""An open loop: requests are sent when their time has come, whatever became of those before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

PATH = "/v1/generate"


class Answer(NamedTuple):
    """
    Attributes:
        seconds: from the time at which the request should be sent to the last byte of its answer
        status: of HTTP; 0: there was no answer
        results: of the body, if the status is 200
    """

    seconds: float
    status: int
    results: list[dict[str, Any]]


def poisson_arrivals(count: int, per_second: float, seed: int) -> list[float]:
    """Seconds after the start: the same for the same arguments."""
    generator = np.random.default_rng(seed)
    arrivals: list[float] = generator.exponential(1 / per_second, count).cumsum().tolist()
    return arrivals


def send_all(url: str, bodies: Sequence[dict[str, Any]], arrivals: Sequence[float]) -> list[Answer]:
    """Send requests at their times, in this process.

    Args:
        url: of the server
        bodies: JSON of each
        arrivals: seconds after the start
    """
    return asyncio.run(_send_all(url, bodies, arrivals))


def send_one_by_one(url: str, bodies: Sequence[dict[str, Any]]) -> list[Answer]:
    """Send each when the one before it is answered."""

    async def send() -> list[Answer]:
        async with _session() as session:
            return [await _send(session, url, body, time.perf_counter()) for body in bodies]

    return asyncio.run(send())


async def _send_all(
    url: str, bodies: Sequence[dict[str, Any]], arrivals: Sequence[float]
) -> list[Answer]:
    started = time.perf_counter()

    async def send_at(session: Any, body: dict[str, Any], arrival: float) -> Answer:
        await asyncio.sleep(started + arrival - time.perf_counter())
        return await _send(session, url, body, started + arrival)

    async with _session() as session:
        return await asyncio.gather(
            *(send_at(session, *each) for each in zip(bodies, arrivals, strict=True))
        )


def _session() -> Any:
    import aiohttp

    connector = aiohttp.TCPConnector(limit=0)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=300))


async def _send(session: Any, url: str, body: dict[str, Any], due: float) -> Answer:
    import aiohttp

    try:
        async with session.post(url + PATH, json=body) as answer:
            found = await answer.json() if answer.status == 200 else {}
            await answer.read()
            return Answer(time.perf_counter() - due, answer.status, found.get("results", []))
    except (aiohttp.ClientError, TimeoutError):
        return Answer(time.perf_counter() - due, 0, [])
