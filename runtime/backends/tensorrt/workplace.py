"""Where one batch at a time is decoded: a stream, memory, contexts, and graphs that were captured.

Several threads have one each.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal

from ..cuda import Device
from ..cuda.device import Bytes
from ..errors import BackendError
from .arena import Arena
from .contexts import Context, KernelCache
from .engine import Engine
from .packages import Package
from .sizes import Sizes

EngineName = Literal["encoder", "decoder"]


class Workplace:
    """Made for a device and a bundle's engines; see `backend.TensorRTBackend`.

    Args:
        scratch: bytes that either engine needs to run, in any profile
        preparing: held while something is made that might disturb the capture of a graph
    """

    def __init__(
        self,
        device: Device,
        package: Package,
        engines: Mapping[EngineName, Engine],
        cache: KernelCache,
        scratch: int,
        preparing: threading.Lock,
    ) -> None:
        self.device = device
        self.stream = device.new_stream()
        self.arena = Arena(device)
        self._package, self._engines, self._cache, self._scratch = package, engines, cache, scratch
        self._preparing = preparing
        self._contexts: dict[tuple[EngineName, Sizes], Context] = {}
        self._bound: set[tuple[EngineName, Sizes]] = set()
        self._graphs: dict[Sizes, Any] = {}
        self._warm: set[Sizes] = set()
        self._refused: set[Sizes] = set()
        self._version = self.arena.version
        self._host: dict[str, Bytes] = {}
        self._events: list[Any] = []

    def context(self, engine: EngineName, sizes: Sizes, bind: Callable[[Context], None]) -> Context:
        """The context of an engine for batches of this size, made when it is first asked for.

        Args:
            bind: tells it where its tensors are; done again only if some address has changed
        """
        scratch = self.arena.reserve("scratch", self._scratch)
        self._forget_what_moved()
        key = (engine, sizes)
        if key not in self._contexts:
            with self._preparing:
                context = Context(
                    self._package, self._engines[engine], sizes.profile, self._cache, self.stream
                )
            context.use_memory(scratch, self._scratch)
            self._contexts[key] = context
        if key not in self._bound:
            bind(self._contexts[key])
            self._bound.add(key)
        return self._contexts[key]

    def run_step(self, sizes: Sizes, context: Context, work: Callable[[], None]) -> None:
        """Put a step into the stream: as it is when these sizes are new, as a graph captured once
        after that. What cannot be captured is run as it is.

        Args:
            context: for these sizes
            work: puts the step into the stream, the same each time for the same sizes
        """
        if sizes in self._graphs:
            self.device.launch(self._graphs[sizes], self.stream)
            return
        if sizes in self._warm - self._refused and context.can_be_captured(self.stream):
            try:
                with self._preparing:
                    self._graphs[sizes] = self._captured(work)
            except BackendError:
                self._refused.add(sizes)
            else:
                self.device.launch(self._graphs[sizes], self.stream)
                return
        self._warm.add(sizes)
        work()

    def _captured(self, work: Callable[[], None]) -> Any:
        self.device.begin_capture(self.stream)
        try:
            work()
        except BackendError:
            with contextlib.suppress(BackendError):
                self.device.free_graph(self.device.end_capture(self.stream))
            raise
        return self.device.end_capture(self.stream)

    def host_memory(self, name: str, size: int) -> Bytes:
        """At least so many bytes of page-locked memory. What was in them may be lost."""
        if name not in self._host or self._host[name].size < size:
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
        self.device.synchronize(self.stream)
        self._forget_graphs()
        self._contexts.clear()
        self.arena.close()
        while self._host:
            _, memory = self._host.popitem()
            self.device.free_host(memory)
        while self._events:
            self.device.free_event(self._events.pop())
        self.device.free_stream(self.stream)

    def _forget_what_moved(self) -> None:
        """Contexts and graphs hold addresses; those of memory that has moved are no more."""
        if self._version == self.arena.version:
            return
        self._version = self.arena.version
        self._bound.clear()
        self._forget_graphs()

    def _forget_graphs(self) -> None:
        self._warm.clear()
        while self._graphs:
            _, graph = self._graphs.popitem()
            self.device.free_graph(graph)
