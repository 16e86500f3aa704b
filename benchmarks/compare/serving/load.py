"""Server processes, and open-loop clients.

Open-loop clients send each request at its scheduled time, regardless of earlier requests.
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
        seconds: from the scheduled time of the request to the last byte of the answer
        status: HTTP status; 0: no answer
        results: results in the body, if the status is 200
    """

    seconds: float
    status: int
    results: list[dict[str, Any]]


@contextmanager
def running(command: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Run a server in a separate process, which ends with the context.

    Yields:
        the URL and the process id

    Raises:
        ProcessError: the server does not start.
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
            # Drain the log, so that the server never blocks.
            Thread(target=lambda: [None for _ in server.stderr or ()], daemon=True).start()
            return str(event["url"])
    raise ProcessError(f"its server did not start: {last:.300}")


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process in MB of 10^6 bytes; 0: unknown."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0
    kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return round(kilobytes * 1024 / 1e6, 1)


def poisson_arrivals(count: int, per_second: float, seed: int) -> list[float]:
    """Return arrival times in seconds after the start, the same for the same arguments."""
    generator = np.random.default_rng(seed)
    arrivals: list[float] = generator.exponential(1 / per_second, count).cumsum().tolist()
    return arrivals


def send_all(url: str, bodies: Sequence[dict[str, Any]], arrivals: Sequence[float]) -> list[Answer]:
    """Send requests at their scheduled times, from this process.

    Args:
        url: URL of the server
        bodies: JSON body of each request
        arrivals: scheduled times in seconds after the start
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
    """Send each request after the previous one is answered."""

    async def send() -> list[Answer]:
        async with open_session() as session:
            return [await _send(session, url, body, time.perf_counter()) for body in bodies]

    return asyncio.run(send())


def open_session() -> Any:
    """Return an aiohttp session with unlimited connections."""
    import aiohttp

    # The server closes idle connections after 5 s, on which a request would fail.
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
