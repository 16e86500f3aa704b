"""The line in which requests wait: first in, first out, of bounded length."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from dragoman.errors import DragomanError

from ...decoding.loop import IDLE_SHARE

Item = TypeVar("Item")

PATIENCE = 0.05
"""Seconds that the first in the line waits at most for others to join a running batch with it."""


class OverloadedError(DragomanError):
    """Too many requests wait.

    Attributes:
        retry_after: seconds after which there may be room, as far as can be said
    """

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ClosedError(DragomanError):
    """The engine takes no requests any more."""


class Line(Generic[Item]):
    """Items with their sizes, in rows of a batch, for several takers.

    Args:
        most: items that may wait
        takers: how many share the work
        is_over: whether nothing should be done any more for one that waits, at a time
    """

    def __init__(self, most: int, takers: int, is_over: Callable[[Item, float], bool]) -> None:
        self._most, self._takers, self._is_over = most, takers, is_over
        self._swept = time.monotonic()
        self._items: deque[tuple[Item, int, float]] = deque()
        self._changed = threading.Condition()
        self._busy: dict[int, int] = {}
        self._closed = False
        self._pace = _Pace()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, items: Sequence[tuple[Item, int]]) -> None:
        """Let items join the line, all or none.

        Raises:
            OverloadedError: more would wait than may.
            ClosedError: the line is closed.
        """
        with self._changed:
            if self._closed:
                raise ClosedError("the server is shutting down")
            if len(self._items) + len(items) > self._most:
                self._sweep(time.monotonic())
            waiting = len(self._items)
            if waiting and waiting + len(items) > self._most:
                raise OverloadedError(
                    f"expected at most {self._most} outputs to wait, found {waiting}: try again "
                    "later",
                    self._pace.seconds_for(waiting),
                )
            self._append(items)

    def put_following(self, item: Item, rows: int) -> None:
        """Let what follows from an item that was taken join; it was admitted with it."""
        with self._changed:
            self._append([(item, rows)])

    def put_back(self, items: Sequence[tuple[Item, int]]) -> None:
        """Items that were taken and could not be used are the first again."""
        now = time.monotonic()
        with self._changed:
            self._items.extendleft((item, rows, now) for item, rows in reversed(items))

    def take(
        self, taker: int, *, busy: int, most: int, fits: Callable[[Sequence[Item]], bool]
    ) -> list[Item] | None:
        """The items that a taker should begin with now; None: the line is closed, and nothing is
        left for it to do.

        Waits until there are some if the taker is not busy. Otherwise none are taken unless they
        are a worthwhile number, or have waited for long enough: see `IDLE_SHARE`.

        Args:
            taker: its number
            busy: rows that it has already
            most: rows that it may have
            fits: whether items go together
        """
        with self._changed:
            self._busy[taker] = busy
            while not busy and not self._items:
                if self._closed:
                    return None
                self._changed.wait()
            now = time.monotonic()
            if now - self._swept >= PATIENCE:
                self._sweep(now)
            group = list(self._group(busy, most, fits))
            waiting = sum(rows for _, rows, _ in self._items)
            rows = sum(rows for _, rows, _ in group)
            few = busy and rows < min(waiting, most * IDLE_SHARE)
            if few and group and now - group[0][2] < PATIENCE:
                return []
            for _ in group:
                self._items.popleft()
            self._busy[taker] = busy + rows
            self._pace.count(len(group))
            return [item for item, _, _ in group]

    def close(self) -> None:
        """Nothing may join any more; what waits is still done."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def clear(self) -> list[Item]:
        """What waits leaves."""
        with self._changed:
            items = [item for item, _, _ in self._items]
            self._items.clear()
            return items

    def _sweep(self, now: float) -> None:
        """What is over leaves."""
        self._swept = now
        self._items = deque(item for item in self._items if not self._is_over(item[0], now))

    def _append(self, items: Sequence[tuple[Item, int]]) -> None:
        now = time.monotonic()
        self._items.extend((item, rows, now) for item, rows in items)
        self._changed.notify_all()

    def _group(
        self, busy: int, most: int, fits: Callable[[Sequence[Item]], bool]
    ) -> Iterator[tuple[Item, int, float]]:
        """The first items that fit, until a taker has its share of all work: the last one may be
        more than that, or several rows that belong together would wait although there is room.
        """
        everything = sum(rows for _, rows, _ in self._items) + sum(self._busy.values())
        share = math.ceil(everything / self._takers)
        taken: list[Item] = []
        for item, rows, since in self._items:
            alone = not busy and not taken
            full = busy >= share or busy + rows > most
            if not alone and (full or not fits([*taken, item])):
                return
            busy += rows
            taken.append(item)
            yield item, rows, since


class _Pace:
    """How fast the line moves."""

    KEPT, SECONDS = 64, 60.0
    """It is known from so many of the last times that something was taken, in the last minute."""
    MOST = 60.0

    def __init__(self) -> None:
        self._taken: deque[tuple[float, int]] = deque(maxlen=self.KEPT)

    def count(self, items: int) -> None:
        if items:
            self._taken.append((time.monotonic(), items))

    def seconds_for(self, items: int) -> float:
        """About how long it takes until this many have been taken: from 1 to 60, 1 if nothing is
        known.
        """
        now = time.monotonic()
        recent = [(at, count) for at, count in self._taken if now - at <= self.SECONDS]
        if len(recent) < 2:
            return 1.0
        seconds = now - recent[0][0]
        return min(max(1.0, items * seconds / sum(count for _, count in recent)), self.MOST)
