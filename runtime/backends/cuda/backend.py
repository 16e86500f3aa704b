"""The common part of GPU backends: workspaces that later batches reuse."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError

from ...format.contract import ROLES, Role
from ...format.manifest import Manifest
from ..interface import BackendError, Limits
from .device import Device
from .layout import Rounding, shape_of
from .memory import BatchMemory
from .state import DeviceState, filled
from .workspace import Workspace


class DeviceBackend(ABC):
    """A backend that decodes on a GPU; implements `interface.Backend`.

    Args:
        rounding: rule for rounding the sizes of batches up
    """

    def __init__(self, manifest: Manifest, device: Device, rounding: Rounding) -> None:
        self.manifest = manifest
        self._device, self._rounding = device, rounding
        self._preparing = threading.RLock()
        self._free: list[Workspace] = []
        self._lock = threading.Lock()
        self._closed = False

    @property
    @abstractmethod
    def limits(self) -> Limits:
        """The limits on batches."""

    @abstractmethod
    def rows_that_fit(self, source: int) -> int | None:
        """Return the number of rows with sources of this length that fit into memory now."""

    @abstractmethod
    def _new_workspace(self) -> Workspace: ...

    def start(
        self,
        source: NDArray[Any],
        source_mask: NDArray[np.bool_],
        prompt: NDArray[np.int64],
        capacity: int,
        width: int = 1,
        prompt_lengths: NDArray[np.int64] | None = None,
    ) -> DeviceState:
        """Encode a batch and allocate `capacity` target positions for each row."""
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
        values: dict[Role, NDArray[Any]] = {"source": source, "source_mask": source_mask}
        values["token_type"] = np.zeros_like(source) if token_type is None else token_type
        encode = self._encode if "decoder" in self.manifest.graphs else self._encode_only
        parts = [
            encode({role: numbers[rows] for role, numbers in values.items()})
            for rows in self._batches(source)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def attention(self, inputs: Mapping[Role, NDArray[Any]]) -> dict[Role, NDArray[np.float32]]:
        """Raise a BackendError: the attention graph runs only on the CPU."""
        raise BackendError(
            "attention: expected the backend onnxruntime, which runs the graph that shows it on "
            "the processor"
        )

    def score(
        self,
        source: NDArray[Any],
        source_mask: NDArray[np.bool_],
        target: NDArray[np.int64],
    ) -> NDArray[Any]:
        """Return the logits that follow each prefix of a target, decoded token by token."""
        parts = []
        for rows in self._batches(source):
            state = self.start(source[rows], source_mask[rows], target[rows, :1], target.shape[1])
            try:
                steps = [_logits_after(state, tokens) for tokens in target[rows].T]
            finally:
                state.close()
            parts.append(np.stack(steps, axis=1))
        return np.concatenate(parts)

    def close(self) -> None:
        """Free unused workspaces now, and others when they are returned."""
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        with self._lock:
            workspaces, self._free = self._free, []
        with contextlib.ExitStack() as stack:  # closes all, even if closing one fails
            for workspace in workspaces:
                stack.callback(workspace.close)

    def _encode(self, values: Mapping[Role, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run the encoder of a model with a decoder."""
        source, mask = values["source"], values["source_mask"]
        state = self.start(source, mask, np.zeros((len(source), 1), np.int64), 1)
        try:
            return state.encoded(*mask.shape)
        finally:
            state.close()

    def _encode_only(self, values: Mapping[Role, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run the encoder of an encoder-only model."""
        graph, (rows, length) = self.manifest.graphs["encoder"], values["source"].shape
        workspace = self._take()
        try:
            sizes = self._rounding.first(rows, length, 0, 1)
            with workspace.preparing:
                memory = BatchMemory(workspace, self.manifest, sizes)
                for tensor in graph.inputs:
                    padding = self.manifest.model.pad_token_id if tensor.role == "source" else 0
                    wide = filled(values[tensor.role], shape_of(tensor, sizes), padding)
                    memory.upload(tensor.slot, wide)
                workspace.encode(sizes, memory.address)
            found = memory.download(*graph.outputs)
        except BaseException:
            self._close_failed(workspace)
            raise
        self._give_back(workspace)
        return {
            tensor.name: numbers[:rows, :length]
            if "source" in ROLES[tensor.role].axes
            else numbers[:rows]
            for tensor, numbers in zip(graph.outputs, found, strict=True)
        }

    def _batches(self, source: NDArray[Any]) -> list[slice]:
        largest = self.limits.rows or len(source)
        return [slice(i, i + largest) for i in range(0, len(source), largest)]

    def _take(self) -> Workspace:
        """Take an idle workspace, preferably the last one of this thread.

        ONNX Runtime captures graphs for each thread separately.
        """
        thread = threading.get_ident()
        with self._lock:
            if self._closed:
                raise BackendError("the model was closed")
            if self._free:
                self._free.sort(key=lambda workspace: workspace.thread == thread)
                workspace = self._free.pop()
                workspace.thread = thread
                return workspace
        return self._new_workspace()

    def _give_back(self, workspace: Workspace) -> None:
        if workspace.failed:
            self._close_failed(workspace)
            return
        with self._lock:
            if not self._closed:
                self._free.append(workspace)
                return
        workspace.close()

    def _close_failed(self, workspace: Workspace) -> None:
        """Free memory, so that a smaller batch can succeed after a failure."""
        with contextlib.suppress(DragomanError):
            workspace.close()
            self._close_idle()


def _logits_after(state: DeviceState, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    """Feed the next token of each row, [B]; return the logits [B, V] that follow."""
    state.feed(tokens)
    return state.advance().logits
