"""The processor: its name and instruction sets, and what all backends on it share."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import cannot_pickle

from ..format.bundle import Bundle
from ..format.contract import Role, Slot
from .interface import BackendError, ClosedModelError, Limits, no_attention
from .rows import CACHED_TOKENS, POSITION_MULTIPLE

CPU_INFO = Path("/proc/cpuinfo")
FEATURES = (
    *("avx", "avx2", "fma", "f16c", "avx_vnni", "avx_vnni_int8"),
    *("avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "svei8mm", "sme"),
)
"""The instruction sets by which math libraries select kernels, as Linux names them."""


@functools.cache
def processor() -> tuple[str, tuple[str, ...]]:
    """Return the name of the processor's model, and its `FEATURES`.

    Linux describes both; elsewhere, the name is what Python knows, without features.
    """
    fields: dict[str, str] = {}
    with suppress(OSError), CPU_INFO.open(encoding="utf-8", errors="replace") as file:
        fields = dict(_first_block(file))
    # x86 has "flags", Arm "Features" and numbers in place of a name.
    listed = f"{fields.get('flags', '')} {fields.get('Features', '')}".split()
    numbers = [fields[key] for key in ("CPU implementer", "CPU part") if key in fields]
    name = fields.get("model name") or " ".join(numbers)
    name = name or platform.processor() or platform.machine() or "unknown processor"
    return name, tuple(feature for feature in FEATURES if feature in listed)


def _first_block(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Yield the fields of the first core; reading all cores of a large machine takes long."""
    for line in lines:
        if not line.strip():
            return
        key, _, value = line.partition(":")
        yield key.strip(), value.strip()


class ProcessorBackend:
    """A backend that runs each graph of a bundle in a session of a library.

    It holds the only lasting references to its `sessions`, so that `close` frees them, even if an
    unfinished stream is kept. Some are opened at once, others at their first use, and all again
    after a fork.
    """

    def __init__(self, bundle: Bundle, threads: int | None) -> None:
        self.manifest = bundle.manifest
        self._bundle, self._threads, self._opening = bundle, threads, threading.Lock()
        self._closed = False
        self.sessions: dict[str, Any] = {}
        _backends.add(self)

    def _session(self, graph: str) -> Any:
        """Open the session of a graph."""
        raise NotImplementedError

    def _outputs(self, graph: str, names: list[str], feeds: dict[str, NDArray[Any]]) -> list[Any]:
        """Return the outputs of these names, of one run of a graph."""
        raise NotImplementedError

    def open_sessions(self, graphs: Iterable[str]) -> None:
        """Open the sessions of these graphs."""
        self.sessions = {name: self._session(name) for name in graphs}

    def session(self, graph: str) -> Any:
        """Return the session of a graph, and open it if necessary."""
        session = self.sessions.get(graph)
        if session is None:
            with self._opening:
                if self._closed:
                    raise ClosedModelError
                session = self.sessions.get(graph) or self._session(graph)
                self.sessions[graph] = session
        return session

    def abandon_sessions(self) -> None:
        """Forget all sessions of a forked process, which has none of their threads.

        Freeing a session waits for its threads, so it would never end.
        """
        for session in self.sessions.values():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))
        self.sessions, self._opening = {}, threading.Lock()

    @property
    def limits(self) -> Limits:
        """The limits on batches."""
        return Limits(encoded=CACHED_TOKENS, source_multiple=POSITION_MULTIPLE)

    @property
    def steps(self) -> None:
        """Return None, as no step can be captured."""

    def rows_that_fit(self, source: int, capacity: int, share: float = 1.0) -> None:
        """Return None: batches on the processor are limited by their tokens."""

    def _run(self, name: str, values: Mapping[Slot, NDArray[Any]]) -> dict[Slot, NDArray[Any]]:
        graph = self.manifest.graphs[name]
        feeds = {tensor.name: values[tensor.slot] for tensor in graph.inputs}
        found = self._outputs(name, [tensor.name for tensor in graph.outputs], feeds)
        return {tensor.slot: value for tensor, value in zip(graph.outputs, found, strict=True)}

    def encode(
        self,
        source: NDArray[Any],
        source_mask: NDArray[np.bool_],
        token_type: NDArray[np.int64] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Return the encoder's outputs by tensor name."""
        types = np.zeros_like(source) if token_type is None else token_type
        found = self._run(
            "encoder",
            {Slot("source"): source, Slot("source_mask"): source_mask, Slot("token_type"): types},
        )
        outputs = self.manifest.graphs["encoder"].outputs
        return {tensor.name: found[tensor.slot] for tensor in outputs}

    def attention(self, inputs: Mapping[Role, NDArray[Any]]) -> dict[Role, NDArray[np.float32]]:
        """Run the attention graph and return its outputs."""
        if "attention" not in self.manifest.graphs:
            raise BackendError(no_attention(self.manifest.name))
        given = {Slot(role): values for role, values in inputs.items()}
        for tensor in self.manifest.graphs["attention"].inputs:
            if tensor.role == "past_state":  # 0 before the first token
                shape = tensor.sized({"batch": len(inputs["token"])})
                given[tensor.slot] = np.zeros(shape, tensor.dtype)
        found = self._run("attention", given)
        return {slot.role: values for slot, values in found.items()}

    def close(self) -> None:
        """Free the sessions; those that are running when their run ends."""
        with self._opening:
            self._closed = True
            self.sessions = {}

    __reduce__ = cannot_pickle


_backends = weakref.WeakSet[ProcessorBackend]()


def _after_fork() -> None:
    for backend in _backends:
        backend.abandon_sessions()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork)
