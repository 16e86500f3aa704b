"""The requests: random sources of several lengths, each with the length of its output and the time
of its arrival.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np


class Request(NamedTuple):
    """
    Attributes:
        source: token ids
        new_tokens: that it gets
        arrival: seconds after the start
    """

    source: list[int]
    new_tokens: int
    arrival: float = 0.0


class Queue(NamedTuple):
    """What every contender works off.

    Attributes:
        requests: in the order of their arrival
        max_batch_size: the most that are decoded together
    """

    requests: list[Request]
    max_batch_size: int


class Answer(NamedTuple):
    """
    Attributes:
        tokens: the new ones
        finished: seconds after the start
    """

    tokens: list[int]
    finished: float


def draw_requests(
    count: int,
    *,
    tokens: tuple[int, int],
    source_lengths: tuple[int, int],
    output_lengths: tuple[int, int],
    per_second: float | None,
    seed: int = 15,
) -> list[Request]:
    """The same requests for the same arguments.

    Args:
        tokens: source tokens are drawn from range(*tokens)
        source_lengths, output_lengths: the shortest and the longest, drawn uniformly and
            independently
        per_second: the mean number of arrivals, which follow a Poisson process; None: all wait at
            the beginning. Sources and lengths are the same in either case
    """
    generator = np.random.default_rng(seed)
    sources = generator.integers(source_lengths[0], source_lengths[1] + 1, count)
    outputs = generator.integers(output_lengths[0], output_lengths[1] + 1, count)
    drawn = [generator.integers(*tokens, length).tolist() for length in sources.tolist()]
    arrivals = np.zeros(count)
    if per_second is not None:
        arrivals = generator.exponential(1 / per_second, count).cumsum()
    return [Request(*fields) for fields in zip(drawn, outputs.tolist(), arrivals, strict=True)]


class WaitingRoom:
    """Requests that have arrived and were not taken yet. Time runs from its construction.

    Args:
        clock: seconds
    """

    def __init__(
        self,
        requests: Sequence[Request],
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._requests, self._clock, self._sleep = requests, clock, sleep
        self._coming = list(range(len(requests)))
        self._waiting: list[int] = []
        self._started = clock()

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._started

    def take(self, most: int, *, wait: bool) -> list[int]:
        """Indices of requests that leave the room: the first that came; among those that came
        together the longest sources, since sources of similar length need little padding.

        Args:
            most: how many at most
            wait: until there is one; none then if all were taken
        """
        self._let_in()
        while wait and not self._waiting and self._coming:
            self._sleep(max(0.0, self._requests[self._coming[0]].arrival - self.now))
            self._let_in()
        self._waiting.sort(key=self._order)
        taken, self._waiting = self._waiting[:most], self._waiting[most:]
        return taken

    def _order(self, index: int) -> tuple[float, int]:
        request = self._requests[index]
        return request.arrival, -len(request.source)

    def _let_in(self) -> None:
        while self._coming and self._requests[self._coming[0]].arrival <= self.now:
            self._waiting.append(self._coming.pop(0))
