"""Where one batch at a time is decoded: a stream, memory, contexts, and graphs that were captured.

Several threads have one each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from ..cuda import Device
from ..cuda.device import Bytes
from .arena import Arena
from .contexts import Context, KernelCache
from .packages import Package
from .sizes import Sizes

EngineName = Literal["encoder", "decoder"]


class Workplace:
    """Made for a device and a bundle's engines; see `backend.TensorRTBackend`.

    Attributes:
        scratch: bytes that either engine needs to run, in any profile
    """

    def __init__(
        self,
        device: Device,
        package: Package,
        engines: dict[EngineName, Any],
        cache: KernelCache,
        scratch: int,
    ) -> None:
        self.device = device
        self.stream = device.new_stream()
        self.arena = Arena(device)
        self._package, self._engines, self._cache, self._scratch = package, engines, cache, scratch
        self._contexts: dict[tuple[EngineName, int], Context] = {}
        self._graphs: dict[Sizes, Any] = {}
        self._seen: set[Sizes] = set()
        self._version = self.arena.version
        self._host: dict[str, Bytes] = {}
        self._events: list[Any] = []

    def context(self, engine: EngineName, profile: int) -> Context:
        """A context of an engine in a profile, made when it is first asked for."""
        key = (engine, profile)
        if key not in self._contexts:
            context = Context(
                self._package, self._engines[engine], profile, self._cache, self.stream
            )
            context.use_memory(self.arena.reserve("scratch", self._scratch), self._scratch)
            self._contexts[key] = context
        return self._contexts[key]

    def run_step(self, sizes: Sizes, context: Context, work: Callable[[], None]) -> None:
        """Put a step into the stream: as it is when these sizes are new, as a graph captured once
        after that.

        Args:
            work: puts the step into the stream, the same each time for the same sizes
        """
        if self._version != self.arena.version:
            self._forget_graphs()
        if sizes not in self._graphs:
            if sizes not in self._seen or not context.can_be_captured(self.stream):
                self._seen.add(sizes)
                work()
                return
            self.device.begin_capture(self.stream)
            try:
                work()
            finally:
                graph = self.device.end_capture(self.stream)
            self._graphs[sizes] = graph
        self.device.launch(self._graphs[sizes], self.stream)

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

    def _forget_graphs(self) -> None:
        """They hold addresses that are no more."""
        self._version = self.arena.version
        self._seen.clear()
        while self._graphs:
            _, graph = self._graphs.popitem()
            self.device.free_graph(graph)
