"""Where one batch at a time is decoded: a stream, and memory that stays for the next batch.

Several threads have one each.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Any

from .arena import Arena
from .device import Bytes, Device
from .layout import Addresses, Sizes


class Workplace(ABC):
    """What puts the work of a batch into a stream; see `state.DeviceState`.

    Args:
        preparing: held while something is made that might disturb the capture of a graph

    Attributes:
        widest: the most rows that a batch had here, or may have
        thread: the thread that had it last
        failed: whether a batch ended with an error here; it is not used again
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
        """Put the encoder into the stream."""

    @abstractmethod
    def prepare(self, sizes: Sizes, addresses: Addresses) -> None:
        """Let the steps that follow be of these sizes."""

    @abstractmethod
    def step(self) -> None:
        """Put one decoding step into the stream. The tokens that it chooses are the input of the
        next."""

    @abstractmethod
    def forget_addresses(self) -> None:
        """Drop what holds addresses: graphs that were captured, above all."""

    @abstractmethod
    def drop(self) -> None:
        """Let go of what works in the stream, before that goes itself."""

    def host_memory(self, name: str, size: int) -> Bytes:
        """At least so many bytes of page-locked memory. What was in them may be lost."""
        if name not in self._host or self._host[name].size < size:
            with self.preparing:
                if name in self._host:
                    self.device.synchronize(self.stream)
                    self.device.free_host(self._host.pop(name))
                self._host[name] = self.device.allocate_host(size)
        return self._host[name]

    def take_event(self) -> Any:
        return self._events.pop() if self._events else self.device.new_event()

    def return_event(self, event: Any) -> None:
        self._events.append(event)

    def close(self) -> None:
        """Free everything, after what is being done."""
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
        """Addresses of memory that has moved are no more."""
        if self._version != self.arena.version:
            self._version = self.arena.version
            self.forget_addresses()
