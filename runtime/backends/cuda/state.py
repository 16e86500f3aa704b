"""A batch being decoded on the device, and the prediction of its last step.

Row r of the batch is row r on the device. The device also decodes rows of retired sources and rows
that were added by rounding; their results are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cached_property, wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...format.contract import GraphSpec, Role, Slot
from ...format.manifest import Manifest
from ..interface import (
    Candidates,
    DecodingState,
    Encoded,
    StepOutput,
)
from ..prediction import HostPrediction
from ..rows import CacheHistory, rows_of_sources, source_lengths, source_room
from .layout import Rounding, Sizes
from .memory import BatchMemory
from .steps import EarlierStates, Positions, StepsInFlight
from .workspace import Workspace

_Arguments = ParamSpec("_Arguments")
_Value = TypeVar("_Value")


def _in_stream(method: Callable[_Arguments, _Value]) -> Callable[_Arguments, _Value]:
    """Let a method of a batch or a prediction hold the stream of its workspace."""

    @wraps(method)
    def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Value:
        batch: Any = args[0]
        with batch._workspace.stream:
            return method(*args, **kwargs)

    return call


class DevicePrediction:
    """The prediction of the last step, on the device until read; see `interface.Prediction`."""

    def __init__(
        self, workspace: Workspace, memory: BatchMemory, manifest: Manifest, rows: int
    ) -> None:
        self._workspace, self._memory, self._manifest = workspace, memory, manifest
        self._suppressed = manifest.generation.suppressed_token_ids
        self._rows = np.arange(rows)
        self._results = workspace.host_memory("choice", memory.results.size)
        memory.download_results(self._results)

    @cached_property
    @_in_stream
    def choice(self) -> StepOutput:
        """The most probable token of each row, as the graph selects it."""
        self._workspace.device.synchronize(self._workspace.stream.number)
        return self._memory.results.read(self._results, self._rows)

    @cached_property
    @_in_stream
    def logits(self) -> NDArray[np.float32]:
        """The logits [B, V]."""
        (found,) = self._memory.download(self._manifest.graphs["decoder"].output("logits"))
        logits: NDArray[np.float32] = found[self._rows, -1].astype(np.float32, copy=False)
        return logits

    @property
    def normalizers(self) -> NDArray[np.float32]:
        """The logarithm of the sum of exp(logits) over all tokens, [B]."""
        return self._on_host.normalizers

    @_in_stream
    def candidates(self, count: int) -> Candidates:
        """Return the `count` most probable tokens of each row.

        They are selected on the device if the bundle has a graph that selects enough.
        """
        graph = self._manifest.graphs.get("candidates")
        allowed = self._manifest.model.target_vocab_size - len(set(self._suppressed))
        if graph is None or _number(graph) < min(count, allowed):
            return self._on_host.candidates(count)
        self._workspace.run("candidates", self._memory.sizes, self._memory.address)
        found = self._memory.download(
            graph.output("candidate_token"), graph.output("candidate_log_probability")
        )
        return Candidates(*(values[self._rows, :count] for values in found))

    @cached_property
    def _on_host(self) -> HostPrediction:
        return HostPrediction(self.logits, self.choice, self._suppressed)


def _number(graph: GraphSpec) -> int:
    number = graph.output("candidate_token").shape[-1]
    return number if isinstance(number, int) else 0


class DeviceState:
    """A batch in a workspace that it owns until `close`; implements `interface.DecodingState`.

    `release` returns the workspace to the backend.
    """

    def __init__(
        self,
        workspace: Workspace,
        manifest: Manifest,
        rounding: Rounding,
        source: NDArray[Any] | Encoded,
        source_mask: NDArray[np.bool_],
        prompt: NDArray[np.int64],
        capacity: int,
        width: int,
        prompt_lengths: NDArray[np.int64] | None,
        release: Callable[[Workspace], None],
    ) -> None:
        self._workspace, self._manifest, self._rounding = workspace, manifest, rounding
        self._release: Callable[[Workspace], None] | None = release
        self._capacity, self._width = capacity, width
        self._lengths = source_lengths(source_mask)
        """Number of positions of each source; 0 for retired sources."""
        sources, length = source_mask.shape
        sizes = rounding.first(sources, length, capacity, width)
        with workspace.stream:
            self._memory = BatchMemory(workspace, manifest, sizes)
            self._in_flight = StepsInFlight(workspace, self._memory)
            self._earlier = EarlierStates(workspace, self._memory)
            self._encode(source, source_mask)
            self._memory.clear_caches()
            workspace.prepare(sizes, self._memory.address)
            self._positions = Positions(workspace, self._memory, capacity)
            self._history = CacheHistory(self._rows, capacity) if width > 1 else None
            if prompt_lengths is None:
                prompt_lengths = np.full(sources, prompt.shape[1])
            self._read_prompt(np.repeat(prompt, width, axis=0), np.repeat(prompt_lengths, width))

    @_in_stream
    def step(self) -> StepOutput:
        """Decode one position of every row; several steps are in flight."""
        self._run_ahead()
        result = self._in_flight.read()
        self._last = result.tokens
        self._run_ahead()
        return result

    @_in_stream
    def advance(self) -> DevicePrediction:
        """Decode one position of every row without feeding tokens back."""
        self._rewind()
        self._launch()
        return DevicePrediction(self._workspace, self._memory, self._manifest, self._rows)

    @_in_stream
    def feed(self, tokens: NDArray[np.int64]) -> None:
        """Set the next step's input."""
        wide = np.full(self._memory.sizes.rows, tokens[-1], np.int64)
        wide[: self._rows] = tokens
        self._last = wide[: self._rows]
        self._memory.upload(Slot("token"), wide)

    @_in_stream
    def reorder(self, parents: NDArray[np.intp]) -> None:
        """Let row r continue the output of row parents[r]."""
        if self._history is None:
            return
        for move in self._history.copies(parents, self._written()):
            self._memory.take_row(self._memory, *move)
        self._memory.reorder_states(parents)

    def retire(self, sources: NDArray[np.intp]) -> None:
        """Stop decoding these sources."""
        self._lengths[sources] = 0

    @_in_stream
    def keep(self, sources: NDArray[np.intp]) -> None:
        """Drop all sources but these."""
        for to, source in enumerate(sources.tolist()):
            if to != source:
                self._take_source(self, source, to)
                self._memory.move_tokens(source, to)
        rows = rows_of_sources(sources, self._width)
        self._in_flight.keep(rows)
        self._last, self._lengths = self._last[rows], self._lengths[sources]
        sizes = self._rounding.after(self._memory.sizes, len(sources))
        if sizes.sources < self._memory.sizes.sources:
            self._workspace.prepare(sizes, self._memory.address)
            self._lay_out(sizes)

    def join(self, other: DecodingState, sources: NDArray[np.intp]) -> None:
        """Admit the sources of another batch, or change nothing if there is not enough memory.

        Steps that have run ahead without them are decoded again.
        """
        if not isinstance(other, DeviceState):
            raise TypeError(f"expected a DeviceState, found {type(other).__name__}")
        streams = {state._workspace.stream for state in (self, other)}
        with ExitStack() as held:
            for stream in sorted(streams, key=lambda stream: stream.number):
                held.enter_context(stream)
            self._rewind()
            other._rewind()
            self._make_room(other, sources)
            self._workspace.follow(other._workspace)
            for source, to in enumerate(sources.tolist()):
                self._take_source(other, source, to)
            other._workspace.follow(self._workspace)  # its memory is reused by other batches
            self._last[rows_of_sources(sources, self._width)] = other._last
            self.feed(self._last)
            self._lengths[sources] = other._lengths
        other.close()

    def close(self) -> None:
        """Return the workspace."""
        release, self._release = self._release, None
        if release is not None:
            self._in_flight.discard()
            release(self._workspace)

    @_in_stream
    def wait(self) -> None:
        """Wait for all work in the stream."""
        self._workspace.device.synchronize(self._workspace.stream.number)

    def encoded_source(self, source: int) -> None:
        """Return None: it is not copied to the host."""

    def _encode(self, source: NDArray[Any] | Encoded, source_mask: NDArray[np.bool_]) -> None:
        values_of: dict[Role, tuple[NDArray[Any], int]] = {"source_mask": (source_mask, False)}
        if isinstance(source, Mapping):
            for tensor in self._manifest.graphs["encoder"].outputs:
                self._memory.fill(tensor, source[tensor.name])
        else:
            values_of["source"] = (source, self._manifest.model.pad_token_id)
        for graph in self._manifest.model_graphs.values():
            for tensor in graph.inputs:
                if tensor.role in values_of:
                    self._memory.fill(tensor, *values_of.pop(tensor.role))
        if "encoder" in self._manifest.graphs and not isinstance(source, Mapping):
            self._workspace.run("encoder", self._memory.sizes, self._memory.address)

    def _read_prompt(self, prompt: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        """Decode the prompt token by token to compute its keys and values.

        The next step reads the last token. All prompts end at the same step: a shorter prompt
        repeats its first token until it begins, from a state of zeros.
        """
        missing = prompt.shape[1] - lengths
        for row in np.flatnonzero(missing).tolist():
            self._positions.place(row, -int(missing[row]))
        rows = np.arange(len(prompt))
        for index in range(prompt.shape[1]):
            if index:
                self._launch()
                for row in np.flatnonzero(missing == index).tolist():
                    self._memory.clear_states(row, 1)
            self.feed(prompt[rows, np.maximum(0, index - missing)])

    def _run_ahead(self) -> None:
        if not self._in_flight.full:
            running = np.repeat(self._lengths > 0, self._width)
            room = self._capacity - self._positions.next[: self._rows][running]
            most = int(room.max()) if len(room) else 1
            self._in_flight.fill(self._rows, most, self._launch_ahead)

    def _launch_ahead(self) -> None:
        self._earlier.put()
        self._launch()

    def _launch(self) -> None:
        if self._history is not None:
            next_ones = self._positions.next[: self._rows]
            self._history.write(next_ones.clip(0, self._capacity - 1), 1)
        self._positions.put()
        self._workspace.step()

    def _rewind(self) -> None:
        """Go back to the step after the last step that was read."""
        steps = self._in_flight.discard()
        if steps:
            self._positions.go_back(steps)
            self._earlier.go_back(steps)
            self.feed(self._last)

    @property
    def _rows(self) -> int:
        return len(self._lengths) * self._width

    def _written(self) -> NDArray[np.int64]:
        return np.minimum(self._positions.next[: self._rows], self._capacity)

    def _take_source(self, other: DeviceState, source: int, to: int) -> None:
        self._memory.take_source(other._memory, source, to)
        written = other._written()
        for beam in range(self._width):
            row, place = source * self._width + beam, to * self._width + beam
            self._memory.take_row(other._memory, row, place, 0, int(written[row]))
            self._memory.take_states(other._memory, row, place)
            if other is self:
                self._earlier.move(row, place)
            self._positions.place(place, int(other._positions.next[row]))
            if self._history is not None and other._history is not None:
                self._history.take(other._history, row, place)

    def _make_room(self, other: DeviceState, sources: NDArray[np.intp]) -> None:
        """Make room for sources of another batch in these places, or change nothing if it fails."""
        present = self._memory.sizes
        staying = np.delete(self._lengths, sources[sources < len(self._lengths)])
        longest = int(max(staying.max(initial=1), other._lengths.max()))
        length = source_room(present.source, longest)
        count = max(len(self._lengths), int(sources.max()) + 1)
        sizes = self._rounding.first(count, length, self._capacity, self._width)
        if sizes != present:
            self._in_flight.reserve(sizes.rows)
            self._memory.grow(sizes)
            try:
                self._workspace.prepare(sizes, self._memory.address)
            except BaseException:
                self._workspace.prepare(present, self._memory.address)
                raise
            self._lay_out(sizes)
        new = count - len(self._lengths)
        self._lengths = np.pad(self._lengths, (0, new))
        self._last = np.pad(self._last, (0, new * self._width))
        if self._history is not None:
            self._history.resize(self._rows)

    def _lay_out(self, sizes: Sizes) -> None:
        self._memory.lay_out(sizes)
        self._positions.resize(sizes.rows)
