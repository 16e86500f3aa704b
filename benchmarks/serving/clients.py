"""Clients that use a server well and badly, and know what it should answer."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .load import PATH, poisson_arrivals
from .measuring import SEED, resident_mb

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"num_beams": 4, "num_return_sequences": 2},
    {"do_sample": True, "seed": 11, "temperature": 0.8},
    {"max_new_tokens": 3, "alternatives": 2},
)
VANISHING, MALFORMED = 0.05, 0.05
"""Shares of clients that go away before they are answered, and that send no request."""
STREAMED = 0.25
"""Share of requests that ask for a stream, of those that may: beams cannot be streamed."""
BURST_SECONDS, BURST = 15.0, 300
"""How often how many requests come at once; more than may wait."""
MEMORY = 1.02
"""What the server may hold at the end, times what it held after the first fifth."""
BAD_BODIES = (b"", b"{", b'{"source": 1}', b'{"sources": {}}', b"\xff\xfe", b'{"source":"a","x":1}')


@dataclass
class Outcome:
    """What happened.

    Attributes:
        rate: requests a second that arrived, without bursts
        streamed: of those that were answered, how many were so token by token
        wrong: answers that are not the library's
        unexpected: answers of another kind than a request of its kind gets, by status
        slots: rows in use, and outputs that wait, after all is over
        memory_mb: after the first fifth of the time, and at the end
    """

    minutes: float
    rate: float
    answered: int
    streamed: int
    refused: int
    vanished: int
    malformed: int
    wrong: int
    unexpected: dict[int, int]
    slots: int
    memory_mb: tuple[float, float]

    @property
    def problems(self) -> list[str]:
        found = []
        if self.wrong:
            found.append(f"expected the library's answers, found {self.wrong} others")
        if self.unexpected:
            found.append(f"unexpected answers, by status: {self.unexpected}")
        if self.slots:
            found.append(f"expected no slots in use at the end, found {self.slots}")
        early, late = self.memory_mb
        if late > early * MEMORY:
            found.append(
                f"expected at most {early * MEMORY:.1f} MB at the end, found {late:.1f} MB"
            )
        if not self.refused:
            found.append("expected some requests of bursts to be refused, found none")
        return found


def library_answers(bundle: Path, sources: Sequence[str]) -> list[list[Any]]:
    """For each of `OPTIONS`, what the library makes of each source, as JSON says it."""
    from dragoman.runtime import GenerationOptions, load
    from dragoman.runtime.decoding.plain import result_data

    model = load(bundle, threads=1)
    return [
        [
            json.loads(json.dumps(result_data(result)))
            for result in model.generate(sources, GenerationOptions(**options))
        ]
        for options in OPTIONS
    ]


def streamed_result(events: str) -> Any:
    """The result that a stream ends with; None if there is none, or the tokens before it are not
    its own.
    """
    found = []
    for message in events.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in message.split("\n"))
        found.append((fields.get("event"), json.loads(fields["data"])))
    *tokens, (name, result) = found
    if name != "end" or [token["id"] for _, token in tokens] != result["tokens"]:
        return None
    text = "".join(token["text"] for _, token in tokens)  # may lack an incomplete character
    return result if result["text"].startswith(text) else None


class Came(NamedTuple):
    """An answer: seconds after the first request was sent, and its status."""

    seconds: float
    status: int


class Clients:
    """All that use a server, well and badly.

    Args:
        pid: of the server's process
        expected: see `library_answers`

    Attributes:
        counts: of what happened, by the names of `Outcome`'s
    """

    def __init__(
        self, url: str, pid: int, sources: Sequence[str], expected: list[list[Any]]
    ) -> None:
        self._url, self._pid = url, pid
        self._sources, self._expected = sources, expected
        self._random = random.Random(SEED)
        self.counts: Counter[str] = Counter()
        self._unexpected: Counter[int] = Counter()

    async def soak(self, rate: float, seconds: float) -> Outcome:
        async with self._connected():
            started, early = time.monotonic(), 0.0
            while (elapsed := time.monotonic() - started) < seconds:
                if not early and elapsed >= seconds / 5:
                    early = resident_mb(self._pid)
                await self._period(rate, min(BURST_SECONDS, max(1.0, seconds - elapsed)))
            slots = await self._slots()
        counts = self.counts
        return Outcome(
            round(seconds / 60, 2),
            round(rate, 2),
            counts["answered"],
            counts["streamed"],
            counts["refused"],
            counts["vanished"],
            counts["malformed"],
            counts["wrong"],
            dict(self._unexpected),
            slots,
            (early, resident_mb(self._pid)),
        )

    async def flood(self, rate: float, seconds: float) -> list[Came]:
        """Nothing but requests, at a rate, whatever becomes of those before."""
        started = time.monotonic()

        async def ask(arrival: float) -> Came:
            await asyncio.sleep(started + arrival - time.monotonic())
            status = await self._ask()
            return Came(time.monotonic() - started, status)

        async with self._connected():
            return await asyncio.gather(*map(ask, self._arrivals(rate, seconds)))

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[None]:
        import aiohttp

        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as self._session:
            yield

    def _arrivals(self, rate: float, seconds: float) -> list[float]:
        return poisson_arrivals(
            max(1, round(rate * seconds)), rate, self._random.randrange(1 << 30)
        )

    async def _period(self, rate: float, seconds: float) -> None:
        """Requests at a rate, and a burst at the end."""
        arrivals, started = self._arrivals(rate, seconds), time.monotonic()

        async def later(arrival: float) -> None:
            await asyncio.sleep(started + arrival - time.monotonic())
            await self._client()

        await asyncio.gather(*map(later, arrivals))
        await asyncio.gather(*(self._ask() for _ in range(BURST)))

    async def _client(self) -> None:
        kind = self._random.random()
        if kind < VANISHING:
            await self._vanish()
        elif kind < VANISHING + MALFORMED:
            await self._malform()
        else:
            await self._ask()

    async def _ask(self) -> int:
        """The status of the answer."""
        index = self._random.randrange(len(self._sources))
        option = self._random.randrange(len(OPTIONS))
        may_stream = "num_beams" not in OPTIONS[option]
        stream = may_stream and self._random.random() < STREAMED
        body = {"source": self._sources[index], "stream": stream, **OPTIONS[option]}
        async with self._session.post(self._url + PATH, json=body) as answer:
            if answer.status == 200:
                if stream:
                    result = streamed_result(await answer.text())
                else:
                    (result,) = (await answer.json())["results"]
                right = result == self._expected[option][index]
                self.counts["answered" if right else "wrong"] += 1
                self.counts["streamed"] += right and stream
            elif answer.status == 429:  # at the given rate, too, while a burst is worked off
                self.counts["refused"] += 1
            else:
                self._unexpected[answer.status] += 1
            return int(answer.status)

    async def _vanish(self) -> None:
        """Send a request, streamed or not, and close the connection without reading."""
        body = json.dumps({"source": "vanishing", "stream": self._random.random() < 0.5}).encode()
        host, _, port = self._url.removeprefix("http://").partition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        whole = head.encode() + body
        # Some do not even send all of it.
        writer.write(whole if self._random.random() < 0.7 else whole[:-5])
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        self.counts["vanished"] += 1

    async def _malform(self) -> None:
        body = self._random.choice(BAD_BODIES)
        async with self._session.post(self._url + PATH, data=body) as answer:
            if answer.status == 400:
                self.counts["malformed"] += 1
            else:
                self._unexpected[answer.status] += 1

    async def _slots(self) -> int:
        """Rows in use and outputs that wait. A last request is answered after those who left are
        gone: they leave at the next step.
        """
        await self._ask()
        async with self._session.get(f"{self._url}/metrics") as answer:
            text = await answer.text()
        gauges = re.findall(
            r"^dragoman_(?:rows_in_use|queue_length)\{.*\} (\S+)$", text, re.MULTILINE
        )
        return int(sum(map(float, gauges)))
