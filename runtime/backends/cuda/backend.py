"""The common part of GPU backends: workspaces that later batches reuse."""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError, cannot_pickle

from ...format.contract import ROLES, Role, Slot
from ...format.manifest import Manifest
from ..interface import (
    NO_SHORTLIST,
    ONLY_ON_THE_PROCESSOR,
    BackendError,
    ClosedModelError,
    DeviceLostError,
    Encoded,
    Limits,
    Steps,
)
from ..rows import part_of
from .device import Device
from .layout import Rounding, Sizes, row_bytes
from .memory import BatchMemory
from .state import DeviceState
from .workspace import StepCounter, Stream, Workspace

log = logging.getLogger(__name__)

MEMORY_SHARE = 0.9
"""Share of free memory that batches may use."""

ROWS = ((32 << 30, 256), (16 << 30, 128), (8 << 30, 64), (4 << 30, 32), (0, 16))
"""Maximum rows of a batch by the least number of bytes of free memory.

A step reads all weights, whatever the number of rows. More rows cost little until products take
longer than reading, which begins at 150 to 400 rows. GPUs with less memory also have less bandwidth
and fewer multipliers, and get fewer rows, so that a step stays short.
"""


AnyStream = TypeVar("AnyStream", bound=Stream)


class DeviceBackend(ABC, Generic[AnyStream]):
    """A backend that decodes on a GPU; implements `interface.Backend`.

    A workspace has `scratch` bytes besides its tensors.
    """

    def __init__(
        self, manifest: Manifest, device: Device, rounding: Rounding, *, scratch: int = 0
    ) -> None:
        self.manifest = manifest
        self.device, self._rounding, self._scratch = device, rounding, scratch
        self._counter = StepCounter()
        self._streams: list[AnyStream] = []
        self._lock = threading.RLock()  # a finalizer may return a workspace at any time
        self._closed = False
        finalizer = weakref.finalize(self, _close_streams, device, self._streams)
        finalizer.atexit = False  # the driver frees everything

    @property
    def limits(self) -> Limits:
        """The limits on batches: only those of the model."""
        return Limits()

    def rows_that_fit(self, source: int, capacity: int, share: float = 1.0) -> int:
        """Return the number of rows of such sizes to decode at a time in the memory free now.

        It is a power of two, which rounding leaves as it is, at most that of `ROWS`, and at least
        1, since a row may still fit. The same amount of memory is left for joining batches, which
        start in their own workspace.
        """
        each = self._row_bytes(self._rounding.first(1, source, capacity, 1))
        with self._lock:
            idle = sorted(w.arena.size for stream in self._streams for w in stream.idle)[-2:]
        free = int(share * (self.device.free_memory() + sum(idle)))
        fitting = int(MEMORY_SHARE * (free - 2 * self._scratch)) // (2 * each)
        usual = next((rows for least, rows in ROWS if free >= least), 1)
        most = max(1, min(fitting, usual, self.limits.rows or usual))
        return 1 << (most.bit_length() - 1)

    @property
    def steps(self) -> Steps:
        """The number of decoding steps so far, as CUDA graphs and directly."""
        return self._counter.steps

    @abstractmethod
    def _new_stream(self) -> AnyStream: ...

    @abstractmethod
    def _new_workspace(self, stream: AnyStream) -> Workspace: ...

    def start(
        self,
        source: NDArray[Any] | Encoded,
        source_mask: NDArray[np.bool_],
        prompt: NDArray[np.int64],
        capacity: int,
        width: int = 1,
        prompt_lengths: NDArray[np.int64] | None = None,
        allowed: Sequence[NDArray[np.int64]] | None = None,
    ) -> DeviceState:
        """Encode a batch and allocate `capacity` target positions for each row."""
        vocabulary = self.manifest.model.target_vocab_size
        if any(len(tokens) < vocabulary for tokens in allowed or ()):
            raise BackendError(NO_SHORTLIST)
        workspace = self._take()
        try:
            return DeviceState(
                workspace,
                self.manifest,
                self._rounding,
                source,
                source_mask,
                prompt,
                capacity,
                width,
                prompt_lengths,
                self._give_back,
            )
        except BaseException:
            self._close_failed(workspace)
            raise

    def encode(
        self,
        source: NDArray[Any],
        source_mask: NDArray[np.bool_],
        token_type: NDArray[np.int64] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Return the encoder's outputs by tensor name."""
        values: dict[str, NDArray[Any]] = {"source": source, "source_mask": source_mask}
        values["token_type"] = np.zeros_like(source) if token_type is None else token_type
        parts = [self._encode(part_of(values, rows)) for rows in self._batches(len(source_mask))]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def attention(self, inputs: Mapping[Role, NDArray[Any]]) -> dict[Role, NDArray[np.float32]]:
        """Raise a BackendError: the attention graph runs only on the CPU."""
        raise BackendError(
            "attention: expected the backend onnxruntime, which runs the graph that shows it on "
            "the processor"
        )

    def check_alignment(self) -> None:
        """Raise a BackendError: the alignment graph runs only on the CPU."""
        raise BackendError(ONLY_ON_THE_PROCESSOR)

    def align(
        self, encoded: Mapping[Slot, NDArray[Any]], token: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """Raise a BackendError: the alignment graph runs only on the CPU."""
        raise BackendError(ONLY_ON_THE_PROCESSOR)

    def score(
        self,
        source: NDArray[Any] | Encoded,
        source_mask: NDArray[np.bool_],
        target: NDArray[np.int64],
        positions: NDArray[np.int64] | None = None,
    ) -> NDArray[Any]:
        """Return the logits that follow prefixes of a target, decoded token by token."""
        parts, kept = [], slice(None) if positions is None else positions
        for rows in self._batches(len(source_mask)):
            own = part_of(source, rows)
            state = self.start(own, source_mask[rows], target[rows, :1], target.shape[1])
            steps = []
            try:
                for tokens in target[rows].T:
                    state.feed(tokens)
                    steps.append(state.advance().logits)
            finally:
                state.close()
            parts.append(np.stack(steps, axis=1)[:, kept])
        return np.concatenate(parts)

    def close(self) -> None:
        """Free unused streams now, and others when their batches end."""
        if not self._closed and any(self.steps):
            log.info("decoding steps: %d as CUDA graphs, %d directly", *self.steps)
        self._closed = True
        self._close_unused()

    __reduce__ = cannot_pickle

    def _row_bytes(self, sizes: Sizes) -> int:
        return row_bytes(self.manifest, sizes) + 8 * self.manifest.model.max_target_positions

    def _close_unused(self) -> None:
        with self._lock:
            unused = [stream for stream in self._streams if not stream.running]
            self._streams[:] = [stream for stream in self._streams if stream.running]
        _close_streams(self.device, unused)

    def _encode(self, values: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        graph, (rows, length) = self.manifest.graphs["encoder"], values["source_mask"].shape
        workspace = self._take()
        try:
            sizes = self._rounding.first(rows, length, 0, 1)
            with workspace.stream:
                memory = BatchMemory(workspace, self.manifest, sizes)
                for tensor in graph.inputs:
                    padding = self.manifest.model.pad_token_id if tensor.role == "source" else 0
                    memory.fill(tensor, values[tensor.role], padding)
                workspace.run("encoder", sizes, memory.address)
                found = memory.download(*graph.outputs)
        except BaseException:
            self._close_failed(workspace)
            raise
        self._give_back(workspace)
        outputs: dict[str, NDArray[Any]] = {}
        for tensor, numbers in zip(graph.outputs, found, strict=True):
            axes = ROLES[tensor.role].axes[1:]
            own = [slice(length) if axis == "source" else slice(None) for axis in axes]
            outputs[tensor.name] = numbers[(slice(rows), *own)]
        return outputs

    def _batches(self, rows: int) -> list[slice]:
        largest = self.limits.rows or rows
        return [slice(i, i + largest) for i in range(0, rows, largest)]

    def _take(self) -> Workspace:
        """Take a workspace in the stream of this thread or one without a batch, or a new one."""
        thread = threading.get_ident()
        with self._lock:
            if self._closed:
                raise ClosedModelError
            mine = [stream for stream in self._streams if stream.thread == thread]
            unused = [stream for stream in self._streams if not stream.running]
            stream = next(iter(mine or unused), None)
            if stream is not None:
                stream.thread = thread
                stream.running += 1
                if stream.idle:
                    return stream.idle.pop()
        if stream is None:
            stream = self._new_stream()
            with self._lock:
                stream.running += 1
                self._streams.append(stream)
        try:
            with stream:
                return self._new_workspace(stream)
        except BaseException:
            self._end(stream)
            raise

    def _give_back(self, workspace: Workspace) -> None:
        if workspace.failed:
            self._close_failed(workspace)
            return
        workspace.stream.idle.append(workspace)
        self._end(workspace.stream)

    def _end(self, stream: Stream) -> None:
        with self._lock:
            stream.running -= 1
        if self._closed:
            self._close_unused()

    def _close_failed(self, workspace: Workspace) -> None:
        stream = workspace.stream
        with contextlib.suppress(DragomanError), stream:
            idle, stream.idle = stream.idle, []
            _close_all([workspace, *idle])
        self._end(stream)
        with contextlib.suppress(DragomanError):
            self._close_unused()


def _close_streams(device: Device, streams: list[Any]) -> None:
    """Close streams in a thread that then may free what else is on the device."""
    with contextlib.suppress(DeviceLostError):
        device.enter()
    _close_all(streams)


def _close_all(closing: list[Any]) -> None:
    """Close workspaces or streams, all of them even if closing one fails."""
    with contextlib.suppress(DeviceLostError), contextlib.ExitStack() as stack:
        while closing:
            stack.callback(closing.pop().close)
