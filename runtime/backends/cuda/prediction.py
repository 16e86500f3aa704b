"""What a step predicts, kept on the device until it is asked for. See `interface.Prediction`."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...format.contract import GraphSpec
from ...format.manifest import Manifest
from ..interface import Candidates, Step
from ..prediction import HostPrediction, without
from .memory import BatchMemory
from .workspace import Workspace


class DevicePrediction:
    """Of the step that was enqueued last, when no other is in flight."""

    def __init__(
        self, workspace: Workspace, memory: BatchMemory, manifest: Manifest, rows: int
    ) -> None:
        self._workspace, self._memory, self._manifest = workspace, memory, manifest
        self._rows = np.arange(rows)
        self._results = workspace.host_memory("choice", memory.results.size)
        memory.download_results(self._results)

    @cached_property
    def choice(self) -> Step:
        self._workspace.device.synchronize(self._workspace.stream)
        return self._memory.results.read(self._results, self._rows)

    @cached_property
    def logits(self) -> NDArray[np.float32]:
        (found,) = self._memory.download(self._manifest.graphs["decoder"].output("logits"))
        logits: NDArray[np.float32] = found[self._rows, -1].astype(np.float32, copy=False)
        return logits

    @property
    def normalizers(self) -> NDArray[np.float32]:
        return self._on_host.normalizers

    def candidates(self, count: int) -> Candidates:
        """Selected on the device, if the bundle has a graph for it and that gives as many."""
        graph = self._manifest.graphs.get("candidates")
        suppressed = self._manifest.generation.suppressed_token_ids
        more = min(count + len(suppressed), self._manifest.model.target_vocab_size)
        if graph is None or more > _number(graph):
            return self._on_host.candidates(count)
        self._workspace.select_candidates(self._memory.sizes, self._memory.address)
        found = self._memory.download(
            graph.output("candidate_token"), graph.output("candidate_log_probability")
        )
        tokens, log_probabilities = (values[self._rows, :more] for values in found)
        return without(Candidates(tokens, log_probabilities), suppressed, count)

    @cached_property
    def _on_host(self) -> HostPrediction:
        suppressed = self._manifest.generation.suppressed_token_ids
        return HostPrediction(self.logits, self.choice, suppressed)


def _number(graph: GraphSpec) -> int:
    """Of the candidates that a graph selects."""
    number = graph.output("candidate_token").shape[-1]
    return number if isinstance(number, int) else 0
