"""Server processes, and open-loop clients, which send requests regardless of earlier ones."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ...processes import ProcessError

ROUTE = "/v1/generate"
SEED = 19

Received = TypeVar("Received")


class Answer(NamedTuple):
    """The answer to a request."""

    seconds: float
    """From the scheduled time of the request to the last byte of the answer."""
    status: int
    """HTTP status; 0: no answer."""


@contextmanager
def running(command: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Run a server in a process that ends with the context; yield its URL and the process's id."""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            yield _url(server), server.pid
        finally:
            server.kill()


def _url(server: subprocess.Popen[str]) -> str:
    last = ""
    for line in server.stderr or ():
        last = line.strip() or last
        with suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict) and event.get("event") == "listening":
                # Drain the log, so that the server never blocks.
                Thread(target=lambda: [None for _ in server.stderr or ()], daemon=True).start()
                return str(event["url"])
    raise ProcessError(f"its server did not start: {last:.300}")


def poisson_arrivals(count: int, per_second: float, seed: int) -> list[float]:
    """Return arrival times in seconds after the start, the same for the same arguments."""
    generator = np.random.default_rng(seed)
    arrivals: list[float] = generator.exponential(1 / per_second, count).cumsum().tolist()
    return arrivals


def send_all(
    url: str, bodies: Sequence[dict[str, Any]], arrivals: Sequence[float] | None = None
) -> list[Answer]:
    """Send requests, by default one by one, or at times in seconds after the start."""

    async def send() -> list[Answer]:
        async with open_session() as session:
            if arrivals is None:
                return [await _send(session, url, body, time.perf_counter()) for body in bodies]
            return await at_times(arrivals, lambda n, due: _send(session, url, bodies[n], due))

    return asyncio.run(send())


async def at_times(
    arrivals: Sequence[float], act: Callable[[int, float], Awaitable[Received]]
) -> list[Received]:
    """Act at scheduled times, in seconds after now, whether or not earlier acts have ended.

    `act` gets the number of the time, and the time on the clock of `time.perf_counter`.
    """
    started = time.perf_counter()

    async def later(index: int, arrival: float) -> Received:
        await asyncio.sleep(started + arrival - time.perf_counter())
        return await act(index, started + arrival)

    return await asyncio.gather(*(later(*each) for each in enumerate(arrivals)))


def open_session() -> Any:
    """Return an aiohttp session with unlimited connections."""
    import aiohttp

    # The server closes idle connections after 5 s, on which a request would fail.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=300))


async def _send(session: Any, url: str, body: dict[str, Any], due: float) -> Answer:
    import aiohttp

    try:
        async with session.post(url + ROUTE, json=body) as answer:
            await answer.read()
            return Answer(time.perf_counter() - due, answer.status)
    except (aiohttp.ClientError, TimeoutError):
        return Answer(time.perf_counter() - due, 0)
