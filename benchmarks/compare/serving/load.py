"""Servers as processes, and clients that send requests when their time has come.

An open loop: a request is sent at its time, whatever became of those before.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import numpy as np

from ...processes import ProcessError

PATH = "/v1/generate"
SEED = 19


class Answer(NamedTuple):
    """The answer to a request.

    Attributes:
        seconds: from the time at which the request should be sent to the last byte of its answer
        status: of HTTP; 0: there was no answer
        results: of the body, if the status is 200
    """

    seconds: float
    status: int
    results: list[dict[str, Any]]


@contextmanager
def running(command: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Run a server in a process of its own, which ends with the context.

    Yields:
        its URL, and the number of the process

    Raises:
        ProcessError: it does not start.
    """
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            yield _url(server), server.pid
        finally:
            server.kill()


def _url(server: subprocess.Popen[str]) -> str:
    last = ""
    for line in server.stderr or ():
        last = line.strip() or last
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("event") == "listening":
            # What else it logs is read, so that it is never held up.
            Thread(target=lambda: [None for _ in server.stderr or ()], daemon=True).start()
            return str(event["url"])
    raise ProcessError(f"its server did not start: {last:.300}")


def resident_mb(pid: int) -> float:
    """Return what a process holds now, in MB of 10^6 bytes; 0 where the system does not say."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0
    kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return round(kilobytes * 1024 / 1e6, 1)


def poisson_arrivals(count: int, per_second: float, seed: int) -> list[float]:
    """Return seconds after the start, the same for the same arguments."""
    generator = np.random.default_rng(seed)
    arrivals: list[float] = generator.exponential(1 / per_second, count).cumsum().tolist()
    return arrivals


def send_all(url: str, bodies: Sequence[dict[str, Any]], arrivals: Sequence[float]) -> list[Answer]:
    """Send requests at their times, from this process.

    Args:
        url: of the server
        bodies: JSON of each
        arrivals: seconds after the start
    """

    async def send() -> list[Answer]:
        started = time.perf_counter()

        async def send_at(session: Any, body: dict[str, Any], arrival: float) -> Answer:
            await asyncio.sleep(started + arrival - time.perf_counter())
            return await _send(session, url, body, started + arrival)

        async with open_session() as session:
            return await asyncio.gather(
                *(send_at(session, *each) for each in zip(bodies, arrivals, strict=True))
            )

    return asyncio.run(send())


def send_one_by_one(url: str, bodies: Sequence[dict[str, Any]]) -> list[Answer]:
    """Send each request when the one before it is answered."""

    async def send() -> list[Answer]:
        async with open_session() as session:
            return [await _send(session, url, body, time.perf_counter()) for body in bodies]

    return asyncio.run(send())


def open_session() -> Any:
    """Return a session of aiohttp with any number of connections."""
    import aiohttp

    # The server closes idle connections after 5 s; a request on one of them would fail.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
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
