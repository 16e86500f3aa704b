"""Soaks a server: a long run under load, with misbehaving clients.

Requests arrive at a fraction of the saturation rate. Some clients disconnect early, some send
malformed requests, and occasional bursts exceed the queue. Every answer, streamed or not, is
compared with the library's for the same source and options. At the end, no row may be in use, and
memory must be the same as after warm-up: the first fifth of the time, at least a minute.
The exit status is 1 if any check fails.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import click

from ...processes import HERE, ProcessError, call_in
from ...processes.memory import memory_mb
from .. import options
from ..record import Record, Table
from ..task import Options, Run, Task
from .load import ROUTE, SEED, at_times, open_session, poisson_arrivals, running

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"num_beams": 4, "num_return_sequences": 2},
    {"do_sample": True, "seed": 11, "temperature": 0.8},
    {"max_new_tokens": 3, "alternatives": 2},
)
VANISHING, MALFORMED = 0.05, 0.05
"""Shares of clients that disconnect before the answer, and that send malformed requests."""
STREAMED = 0.25
"""Share of streams among requests that may be streamed, which beams may not."""
BURST_SECONDS, BURST = 15.0, 300
"""Seconds between bursts, and requests of a burst, which are more than may wait."""
MEMORY = 1.02
"""The most memory of the server at the end, over its memory after warm-up."""
WARM_UP = 60.0
"""Seconds until a server has used all its buffers, of bursts too; at most half of a soak."""
SHARE = 0.8
"""The share of the saturated rate at which requests arrive."""
WAITING = 128
RATES = tuple(50.0 * 2**n for n in range(8))
"""Requests a second that are tried, until a server cannot answer all."""
ATTEMPT_SECONDS = 6.0
SATURATED = 0.1
"""The share of refused requests from which a server is saturated."""
GAUGE = r"^dragoman_(?:rows_in_use|queue_length)\{.*\} (\S+)$"
"""Pattern of what a server counts of the rows in use and of the outputs that wait."""
BAD_BODIES = (b"", b"{", b'{"source": 1}', b'{"sources": {}}', b"\xff\xfe", b'{"source":"a","x":1}')


def problems(record: Record) -> list[str]:
    """Return the failed checks of a soak."""
    early, late = record["memory_mb"]
    checks = {
        f"expected the library's answers, found {record['wrong']} others": record["wrong"],
        f"unexpected answers, by status: {record['unexpected']}": record["unexpected"],
        f"expected no slots in use at the end, found {record['slots']}": record["slots"],
        f"expected at most {early * MEMORY:.1f} MB at the end, found {late:.1f} MB": (
            late > early * MEMORY
        ),
        "expected some requests of bursts to be refused, found none": not record["refused"],
    }
    return [problem for problem, found in checks.items() if found]


def library_answers(bundle: Path, sources: Sequence[str]) -> list[list[Any]]:
    """Return the library's result of each source, as JSON, for each of `OPTIONS`."""
    from dragoman.runtime import GenerationOptions, load
    from dragoman.runtime.decoding.results import result_data

    model = load(bundle, threads=1)
    answers = [model.generate(sources, GenerationOptions(**options)) for options in OPTIONS]
    return [[json.loads(json.dumps(result_data(r))) for r in results] for results in answers]


def streamed_result(events: str) -> Any:
    """Return the result of a stream; None: it is missing or differs from the streamed tokens."""
    found = []
    for message in events.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in message.split("\n"))
        found.append((fields.get("event"), json.loads(fields["data"])))
    *tokens, (name, result) = found
    ids = [token["id"] for _, token in tokens if not token["is_end"]]
    if name != "end" or ids != result["tokens"]:
        return None
    text = "".join(token["text"] for _, token in tokens)  # may lack an incomplete character
    return result if result["text"].startswith(text) else None


COUNTS = ("answered", "streamed", "refused", "vanished", "malformed", "wrong")
"""What is counted of clients; "wrong" are answers that differ from the library's."""


class Clients:
    """Well-behaved and misbehaving clients, which compare answers with `library_answers`."""

    def __init__(
        self, url: str, pid: int, sources: Sequence[str], expected: list[list[Any]]
    ) -> None:
        self._url, self._pid = url, pid
        self._sources, self._expected = sources, expected
        self._random = random.Random(SEED)
        self.counts: Counter[str] = Counter()
        self._unexpected: Counter[int] = Counter()

    async def soak(self, rate: float, seconds: float) -> dict[str, Any]:
        """Send valid and invalid requests at a rate, with bursts.

        Returns:
            `rate`: requests per second, without bursts; numbers of clients by `COUNTS`, of answers
            with an `unexpected` status, by status, of `slots`: rows in use and waiting outputs at
            the end; and `memory_mb` after warm-up and at the end
        """
        async with open_session() as self._session:
            started, early = time.monotonic(), 0.0
            while (elapsed := time.monotonic() - started) < seconds:
                if not early and elapsed >= max(seconds / 5, min(seconds / 2, WARM_UP)):
                    early = memory_mb(self._pid)
                period = min(BURST_SECONDS, max(1.0, seconds - elapsed))
                await at_times(self._arrivals(rate, period), self._client)
                await asyncio.gather(*(self._ask() for _ in range(BURST)))
            slots = await self._slots()
        return {
            "minutes": round(seconds / 60, 2),
            "rate": round(rate, 2),
            **{name: self.counts[name] for name in COUNTS},
            "unexpected": dict(self._unexpected),
            "slots": slots,
            "memory_mb": (early, memory_mb(self._pid)),
        }

    async def flood(self, rate: float, seconds: float) -> list[tuple[float, int]]:
        """Send only valid requests; return the seconds since the first and the status of each."""
        started = time.perf_counter()

        async def ask(index: int, due: float) -> tuple[float, int]:
            status = await self._ask()
            return time.perf_counter() - started, status

        async with open_session() as self._session:
            return await at_times(self._arrivals(rate, seconds), ask)

    def _arrivals(self, rate: float, seconds: float) -> list[float]:
        seed = self._random.randrange(1 << 30)
        return poisson_arrivals(max(1, round(rate * seconds)), rate, seed)

    async def _client(self, index: int, due: float) -> None:
        kind = self._random.random()
        if kind < VANISHING:
            await self._vanish()
        elif kind < VANISHING + MALFORMED:
            body = self._random.choice(BAD_BODIES)
            async with self._session.post(self._url + ROUTE, data=body) as answer:
                if answer.status == 400:
                    self.counts["malformed"] += 1
                else:
                    self._unexpected[answer.status] += 1
        else:
            await self._ask()

    async def _ask(self) -> int:
        """Send a request, compare the answer, and return its status."""
        index = self._random.randrange(len(self._sources))
        option = self._random.randrange(len(OPTIONS))
        may_stream = "num_beams" not in OPTIONS[option]
        stream = may_stream and self._random.random() < STREAMED
        body = {"source": self._sources[index], "stream": stream, **OPTIONS[option]}
        async with self._session.post(self._url + ROUTE, json=body) as answer:
            if answer.status == 200:
                if stream:
                    result = streamed_result(await answer.text())
                else:
                    (result,) = (await answer.json())["results"]
                right = result == self._expected[option][index]
                self.counts["answered" if right else "wrong"] += 1
                self.counts["streamed"] += right and stream
            elif answer.status == 429:  # also outside bursts, while the queue drains
                self.counts["refused"] += 1
            else:
                self._unexpected[answer.status] += 1
            return int(answer.status)

    async def _vanish(self) -> None:
        """Send a request, streamed or not, and close the connection without reading."""
        body = json.dumps({"source": "vanishing", "stream": self._random.random() < 0.5}).encode()
        host, _, port = self._url.removeprefix("http://").partition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = f"POST {ROUTE} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        whole = head.encode() + body
        # Some clients send only a part.
        writer.write(whole if self._random.random() < 0.7 else whole[:-5])
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        self.counts["vanished"] += 1

    async def _slots(self) -> int:
        """Return the rows in use and the outputs that wait, after abandoned ones are evicted."""
        await self._ask()
        async with self._session.get(f"{self._url}/metrics") as answer:
            text = await answer.text()
        return int(sum(map(float, re.findall(GAUGE, text, re.MULTILINE))))


def saturation(flood: Callable[[float], Sequence[tuple[float, int]]]) -> float:
    """Return the requests answered per second under overload, given what sends them at a rate.

    They are counted in the middle half of the time, when the queue is full and requests arrive.
    """
    begin, end = ATTEMPT_SECONDS / 4, ATTEMPT_SECONDS * 3 / 4
    for rate in RATES:
        statuses = [status for seconds, status in flood(rate) if begin <= seconds < end]
        if statuses.count(429) > SATURATED * len(statuses):
            return statuses.count(200) / (end - begin)
    raise ProcessError(f"expected some of {RATES[-1]:.0f} requests a second to be refused")


def measure(run: Run, given: Options) -> dict[str, Any]:
    """Find the saturation rate of a server, then soak it at a fraction of that rate."""
    bundle, minutes = given.bundle, given.minutes
    draw = random.Random(SEED).choices  # any text model can read words of 1 to 20 letters
    sources = ["".join(draw(ascii_lowercase, k=1 + n % 20)) for n in range(60)]
    expected = call_in(HERE, library_answers, bundle, sources)
    command = [sys.executable, "-m", "dragoman", "serve", str(bundle), "--port", "0"]
    with running([*command, "--max-waiting", str(WAITING)]) as (url, pid):
        run.progress("finding the rate at which it is saturated")
        trial = Clients(url, pid, sources, expected)
        rate = SHARE * saturation(lambda r: asyncio.run(trial.flood(r, ATTEMPT_SECONDS)))
        run.progress(f"{rate:.0f} requests a second for {minutes:g} minutes")
        clients = Clients(url, pid, sources, expected)
        outcome = asyncio.run(clients.soak(rate, minutes * 60))
    return {"bundle": bundle.resolve().name, **outcome}


def tables(record: Record) -> Iterator[Table]:
    """Yield a row for each figure."""
    names = ("minutes", "rate", *COUNTS, "unexpected", "slots", "memory_mb")
    rows = [[name, str(record[name])] for name in names]
    yield Table(["", "found"], rows, f"{record['bundle']}, under load")


def notes(record: Record) -> Iterator[str]:
    """Yield the number of correct answers."""
    text = "{answered} answers as the library's, {streamed} of them streamed; {refused} refused"
    yield text.format_map(record)


SOAK = Task(
    name="soak",
    help="Let clients use and misuse a server of BUNDLE, of texts, for a long time.",
    options=(
        options.argument("bundle", Path),
        options.option("--minutes", "Minutes of load.", 30.0, click.FloatRange(0.2)),
    ),
    measure=measure,
    rows="answered",
    file=lambda record, options: "serving-soak",
    tables=tables,
    notes=notes,
    problems=problems,
)
