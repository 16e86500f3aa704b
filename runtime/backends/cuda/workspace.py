"""Streams, and workspaces in them: each is the reusable memory of one batch at a time.

A reservation keeps its address until it must grow, so that captured graphs can be launched again.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ..interface import Steps
from .device import Bytes, Device
from .layout import Addresses, Sizes

log = logging.getLogger(__name__)


class Arena:
    """Reservations of device memory by name."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._known: dict[str, tuple[int, int]] = {}
        self.version = 0
        """Number that changes with every change of an address."""

    def reserve(self, name: str, size: int) -> int:
        """Return the address of at least `size` bytes; contents may be lost."""
        address, present = self._known.get(name, (0, -1))
        if size <= present:
            return address
        if present >= 0:
            del self._known[name]
            self._device.free(address)
        self._known[name] = (self._device.allocate(size), size)
        self.version += 1
        return self._known[name][0]

    def grow(self, sizes: Mapping[str, int], stream: int) -> None:
        """Grow reservations to at least these sizes; if memory does not suffice, nothing changes.

        Contents are copied in the order of the stream.
        """
        new: dict[str, tuple[int, int]] = {}
        try:
            for name, size in sizes.items():
                if size > self._known.get(name, (0, -1))[1]:
                    new[name] = (self._device.allocate(size), size)
        except BaseException:
            for address, _ in new.values():
                self._device.free(address)
            raise
        old = {name: self._known[name] for name in new.keys() & self._known.keys()}
        for name, (address, size) in old.items():
            self._device.copy(new[name][0], address, size, stream)
        self._known |= new
        self.version += len(new)
        for address, _ in old.values():  # waits for the copies
            self._device.free(address)

    def address(self, name: str) -> int:
        """Return the address of a reservation."""
        return self._known[name][0]

    @property
    def size(self) -> int:
        """The number of reserved bytes."""
        return sum(size for _, size in self._known.values())

    def close(self) -> None:
        """Free everything."""
        while self._known:
            _, (address, _) = self._known.popitem()
            self._device.free(address)


class StepCounter:
    """Counts the decoding steps of a backend, and logs why steps are not captured."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._captured = self._direct = 0
        self._reasons: set[str] = set()

    def count(self, *, captured: bool) -> None:
        """Count a step."""
        with self._lock:
            self._captured += captured
            self._direct += not captured

    def log_failure(self, reason: str) -> None:
        """Log a failed capture, once for each reason, whatever numbers it states."""
        words = re.sub(r"\d+", "", reason)
        with self._lock:
            is_known = words in self._reasons
            self._reasons.add(words)
        if not is_known:
            log.warning("a decoding step could not be captured as a CUDA graph: %s", reason)

    @property
    def steps(self) -> Steps:
        """The steps so far."""
        with self._lock:
            return Steps(self._captured, self._direct)


class Stream:
    """A stream, which the batches of a thread share.

    It is held (`with stream`) while work is enqueued. A batch may be continued in another thread
    than it was started in, and whatever is enqueued during a capture becomes part of the graph.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.number = device.new_stream()
        self.thread = threading.get_ident()
        self.running = 0
        self.idle: list[Workspace] = []
        """Workspaces without a batch, which later batches use."""
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self.device.enter()
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def drop(self) -> None:
        """Release everything that uses the stream, before the stream is freed."""

    def close(self) -> None:
        """Free everything, all of it even if freeing some of it fails."""
        with self, contextlib.ExitStack() as stack:
            stack.callback(self.device.free_stream, self.number)
            stack.callback(self.drop)
            stack.callback(self.device.synchronize, self.number)
            while self.idle:
                stack.callback(self.idle.pop().close)


MOST_ATTEMPTS = 3
"""Maximum number of failed captures of a size of batches. A capture may fail because of what
another thread of the process does, so that later batches try again."""


class Workspace(ABC):
    """Enqueues the work of a batch in a stream; see `state.DeviceState`."""

    def __init__(self, stream: Stream, counter: StepCounter) -> None:
        self.device, self.stream = stream.device, stream
        self.arena = Arena(self.device)
        self.widest = 0
        self.failed = False
        """Whether a batch ended with an error; the workspace is not used again then."""
        self._counter = counter
        self._fed_back: list[tuple[int, int, int]] = []
        self._failures: Counter[Sizes] = Counter()
        self._version = self.arena.version
        self._host: dict[str, Bytes] = {}
        self._events: list[Any] = []

    @abstractmethod
    def run(self, name: str, sizes: Sizes, addresses: Addresses) -> None:
        """Enqueue the encoder, or the graph that selects candidates from a step's logits."""

    @abstractmethod
    def prepare(self, sizes: Sizes, addresses: Addresses) -> None:
        """Set the sizes of the next steps."""

    @abstractmethod
    def step(self) -> None:
        """Enqueue one decoding step, which feeds tokens and states to the next step."""

    def feed_back(self) -> None:
        """Enqueue the copies that make a step's tokens and states the input of the next one."""
        for copy in self._fed_back:
            self.device.copy(*copy, self.stream.number)

    @abstractmethod
    def forget_addresses(self) -> None:
        """Drop everything that depends on addresses, such as captured graphs."""

    def drop(self) -> None:
        """Release everything that uses the memory, before it is freed."""
        self.forget_addresses()

    def host_memory(self, name: str, size: int) -> Bytes:
        """Return at least `size` bytes of page-locked memory; contents may be lost."""
        if name not in self._host or self._host[name].size < size:
            memory = self.device.allocate_host(size)
            if name in self._host:
                self.device.synchronize(self.stream.number)
                self.device.free_host(self._host[name])
            self._host[name] = memory
        return self._host[name]

    def follow(self, other: Workspace) -> None:
        """Make later work wait for all present work of another workspace."""
        if other.stream is self.stream:
            return
        event = other.take_event()
        self.device.record(event, other.stream.number)
        self.device.follow(event, self.stream.number)
        other.return_event(event)

    def take_event(self) -> Any:
        """Return an unused event."""
        return self._events.pop() if self._events else self.device.new_event()

    def return_event(self, event: Any) -> None:
        """Take back an event from `take_event`."""
        self._events.append(event)

    def close(self) -> None:
        """Free everything once the stream is idle; the stream itself stays."""
        with self.stream:
            self.device.synchronize(self.stream.number)
            self.drop()
            self.arena.close()
            while self._host:
                _, memory = self._host.popitem()
                self.device.free_host(memory)
            while self._events:
                self.device.free_event(self._events.pop())

    def may_capture(self, sizes: Sizes) -> bool:
        """Return whether steps of a batch of these sizes may still be captured."""
        return self._failures[sizes] < MOST_ATTEMPTS

    def capture_failed(self, sizes: Sizes, reason: str) -> None:
        """Record that a capture has failed."""
        self._failures[sizes] += 1
        self._counter.log_failure(reason)

    def forget_what_moved(self) -> None:
        """Drop everything that depends on addresses if memory has moved."""
        if self._version != self.arena.version:
            self._version = self.arena.version
            self.forget_addresses()
