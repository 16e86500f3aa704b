"""Where one batch at a time is decoded: a stream, and memory that is kept for the next batch.

Each thread has its own.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Any

from .arena import Arena
from .device import Bytes, Device
from .layout import Addresses, Sizes


class Workspace(ABC):
    """Enqueues the work of a batch in a stream; see `state.DeviceState`.

    Args:
        preparing: held during work that would disturb the capture of a graph

    Attributes:
        widest: the most rows that a batch had here, or can have
        thread: the thread that used it last
        failed: whether a batch ended with an error here; then it is not used again
    """

    def __init__(self, device: Device, preparing: threading.RLock) -> None:
        self.device = device
        self.stream = device.new_stream()
        self.arena = Arena(device)
        self.preparing = preparing
        self.widest = 0
        self.thread = threading.get_ident()
        self.failed = False
        self._version = self.arena.version
        self._host: dict[str, Bytes] = {}
        self._events: list[Any] = []

    @abstractmethod
    def encode(self, sizes: Sizes, addresses: Addresses) -> None:
        """Enqueue the encoder."""

    @abstractmethod
    def prepare(self, sizes: Sizes, addresses: Addresses) -> None:
        """Set the sizes of the steps that follow."""

    @abstractmethod
    def step(self) -> None:
        """Enqueue one decoding step. The tokens that it chooses become the input of the next."""

    @abstractmethod
    def select_candidates(self, sizes: Sizes, addresses: Addresses) -> None:
        """Enqueue the selection of candidates from the logits of the last step; the bundle has a
        graph for it.
        """

    @abstractmethod
    def forget_addresses(self) -> None:
        """Drop everything that holds addresses, above all captured graphs."""

    @abstractmethod
    def drop(self) -> None:
        """Release what uses the stream, before the stream is freed."""

    def host_memory(self, name: str, size: int) -> Bytes:
        """At least this many bytes of page-locked memory. Their contents may be lost."""
        if name not in self._host or self._host[name].size < size:
            with self.preparing:
                memory = self.device.allocate_host(size)
                if name in self._host:
                    self.device.synchronize(self.stream)
                    self.device.free_host(self._host[name])
                self._host[name] = memory
        return self._host[name]

    def follow(self, other: Workspace) -> None:
        """What is enqueued here from now on waits for all that is enqueued there so far."""
        event = other.take_event()
        self.device.record(event, other.stream)
        self.device.follow(event, self.stream)
        other.return_event(event)

    def take_event(self) -> Any:
        return self._events.pop() if self._events else self.device.new_event()

    def return_event(self, event: Any) -> None:
        self._events.append(event)

    def close(self) -> None:
        """Free everything once the stream is idle."""
        with self.preparing:
            self.device.synchronize(self.stream)
            self.forget_addresses()
            self.drop()
            self.arena.close()
            while self._host:
                _, memory = self._host.popitem()
                self.device.free_host(memory)
            while self._events:
                self.device.free_event(self._events.pop())
            self.device.free_stream(self.stream)

    def forget_what_moved(self) -> None:
        """Drop what holds addresses, if memory has moved."""
        if self._version != self.arena.version:
            self._version = self.arena.version
            self.forget_addresses()
