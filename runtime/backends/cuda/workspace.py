"""The workspace for one batch at a time: a stream and reusable memory.

A memory reservation keeps its address until it must grow, so that captured graphs can be launched
again for later batches.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from .device import Bytes, Device
from .layout import Addresses, Sizes


class Arena:
    """Reservations of device memory by name.

    Attributes:
        version: number that changes with every change of an address
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._known: dict[str, tuple[int, int]] = {}
        self.version = 0

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
        """Grow reservations to at least these sizes.

        Contents are copied in the order of the stream. If memory does not suffice, nothing changes.
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


class Workspace(ABC):
    """Enqueues the work of a batch in a stream; see `state.DeviceState`.

    Args:
        preparing: lock for work that would disturb the capture of a graph

    Attributes:
        widest: largest number of rows of a batch so far or allowed
        thread: the last thread to use the workspace
        failed: whether a batch ended with an error; the workspace is not used again then
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
        """Set the sizes of the next steps."""

    @abstractmethod
    def step(self) -> None:
        """Enqueue one decoding step, which feeds its selected tokens to the next step."""

    @abstractmethod
    def select_candidates(self, sizes: Sizes, addresses: Addresses) -> None:
        """Enqueue the graph that selects candidates from the logits of the last step."""

    @abstractmethod
    def forget_addresses(self) -> None:
        """Drop everything that depends on addresses, such as captured graphs."""

    @abstractmethod
    def drop(self) -> None:
        """Release everything that uses the stream, before the stream is freed."""

    def host_memory(self, name: str, size: int) -> Bytes:
        """Return at least `size` bytes of page-locked memory; contents may be lost."""
        if name not in self._host or self._host[name].size < size:
            with self.preparing:
                memory = self.device.allocate_host(size)
                if name in self._host:
                    self.device.synchronize(self.stream)
                    self.device.free_host(self._host[name])
                self._host[name] = memory
        return self._host[name]

    def follow(self, other: Workspace) -> None:
        """Make later work wait for all present work of another workspace."""
        event = other.take_event()
        self.device.record(event, other.stream)
        self.device.follow(event, self.stream)
        other.return_event(event)

    def take_event(self) -> Any:
        """Return an unused event."""
        return self._events.pop() if self._events else self.device.new_event()

    def return_event(self, event: Any) -> None:
        """Take back an event from `take_event`."""
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
        """Drop everything that depends on addresses if memory has moved."""
        if self._version != self.arena.version:
            self._version = self.arena.version
            self.forget_addresses()
