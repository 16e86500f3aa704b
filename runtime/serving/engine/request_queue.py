"""The bounded FIFO queue that an engine's workers share."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType
from typing import Generic, TypeVar

from dragoman.errors import DragomanError

from ...decoding.running_batch import IDLE_SHARE

Item = TypeVar("Item")

CLOSED = "the server is shutting down"
PATIENCE = 0.05
"""The most seconds that the first item waits for others to join a running batch with it."""


class OverloadedError(DragomanError):
    """Too many requests are waiting.

    Attributes:
        retry_after: estimated seconds until there is room
    """

    status, code = 429, "overloaded"

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.headers = {"Retry-After": str(round(retry_after))}


class ClosedError(DragomanError):
    """The engine accepts no more requests."""

    status, code = 503, "shutting_down"
    headers = MappingProxyType({"Retry-After": "1"})


class RequestQueue(Generic[Item]):
    """A queue of items with their sizes in rows of a batch.

    Args:
        rows: maximum rows of each worker that shares the queue
    """

    def __init__(
        self, most: int, rows: Sequence[int], is_over: Callable[[Item, float], bool]
    ) -> None:
        self._most, self._rows, self._is_over = most, dict(enumerate(rows)), is_over
        self._swept = time.monotonic()
        self._items: deque[tuple[Item, int, float]] = deque()
        self._changed = threading.Condition()
        self._busy: dict[int, int] = {}
        self._closed = False
        self._pace = _Pace()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, items: Sequence[tuple[Item, int]], *, is_accepted: bool = False) -> None:
        """Add items to the queue, all or none.

        Args:
            is_accepted: add them to a full queue, too

        Raises:
            OverloadedError, ClosedError: the queue is full or closed.
        """
        with self._changed:
            if self._closed:
                raise ClosedError(CLOSED)
            if len(self._items) + len(items) > self._most:
                self._sweep(time.monotonic())
            waiting = len(self._items)
            if waiting and waiting + len(items) > self._most and not is_accepted:
                raise OverloadedError(
                    f"expected at most {self._most} outputs to wait, found {waiting}: try again "
                    "later",
                    self._pace.seconds_for(waiting),
                )
            self._append(items)

    def put_following(self, item: Item, rows: int, *, is_first: bool = False) -> None:
        """Add the successor of a taken item, to the front or the end; it is never refused."""
        with self._changed:
            self._append([(item, rows)], is_first=is_first)

    def put_back(self, items: Sequence[tuple[Item, int]]) -> None:
        """Return taken items to the front of the queue."""
        now = time.monotonic()
        with self._changed:
            self._items.extendleft((item, rows, now) for item, rows in reversed(items))

    def take(
        self, worker: int, *, busy: int, most: int, fits: Callable[[Sequence[Item]], bool]
    ) -> list[Item] | None:
        """Take the next items for a worker; None: the queue is closed and empty.

        An idle worker waits for items. A busy one gets none until there are enough, or they have
        waited long enough; see `IDLE_SHARE`.

        Args:
            busy: rows in use by the worker
            most: maximum rows of the worker
        """
        with self._changed:
            self._busy[worker] = busy
            while not busy and not self._items:
                if self._closed:
                    return None
                self._changed.wait()
            now = time.monotonic()
            if now - self._swept >= PATIENCE:
                self._sweep(now)
            group = list(self._group(worker, busy, most, fits))
            waiting = sum(rows for _, rows, _ in self._items)
            rows = sum(rows for _, rows, _ in group)
            few = busy and rows < min(waiting, most * IDLE_SHARE)
            if few and group and now - group[0][2] < PATIENCE:
                return []
            for _ in group:
                self._items.popleft()
            self._busy[worker] = busy + rows
            self._pace.count(len(group))
            return [item for item, _, _ in group]

    def close(self) -> None:
        """Refuse new items; waiting items can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def withdraw(self, worker: int) -> list[Item]:
        """Leave the waiting items to the other workers.

        The last worker closes the queue, and gets all items that are left.
        """
        with self._changed:
            for known in (self._rows, self._busy):
                known.pop(worker, None)
            if self._rows:
                return []
            self._closed = True
            items = [item for item, _, _ in self._items]
            self._items.clear()
            return items

    def _sweep(self, now: float) -> None:
        self._swept = now
        self._items = deque(item for item in self._items if not self._is_over(item[0], now))

    def _append(self, items: Sequence[tuple[Item, int]], *, is_first: bool = False) -> None:
        now, extend = time.monotonic(), self._items.extendleft if is_first else self._items.extend
        extend((item, rows, now) for item, rows in items)
        self._changed.notify_all()

    def _group(
        self, worker: int, busy: int, most: int, fits: Callable[[Sequence[Item]], bool]
    ) -> Iterator[tuple[Item, int, float]]:
        """Yield the first items that fit, up to a worker's share of all work.

        The last item may exceed it, so that no item waits while there is room.
        """
        everything = sum(rows for _, rows, _ in self._items) + sum(self._busy.values())
        share = math.ceil(everything * self._rows[worker] / sum(self._rows.values()))
        taken: list[Item] = []
        for item, rows, since in self._items:
            first_of_all = not busy and not taken
            full = busy >= share or busy + rows > most
            if not first_of_all and (full or not fits([*taken, item])):
                return
            busy += rows
            taken.append(item)
            yield item, rows, since


class _Pace:
    """The rate at which items are taken, from the last `KEPT` times within `SECONDS`."""

    KEPT, SECONDS = 64, 60.0
    MOST = 60.0

    def __init__(self) -> None:
        self._taken: deque[tuple[float, int]] = deque(maxlen=self.KEPT)

    def count(self, items: int) -> None:
        if items:
            self._taken.append((time.monotonic(), items))

    def seconds_for(self, items: int) -> float:
        """Estimate the seconds until so many items are taken: 1 to 60; 1 if unknown."""
        now = time.monotonic()
        recent = [(at, count) for at, count in self._taken if now - at <= self.SECONDS]
        if len(recent) < 2:
            return 1.0
        seconds = now - recent[0][0]
        return min(max(1.0, items * seconds / sum(count for _, count in recent)), self.MOST)
