"""The sessions that work in one stream, and the options of their runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnxruntime

from ....format.bundle import Bundle
from ...errors import BackendError
from ..sessions import open_session
from .failures import cuda_failure

log = logging.getLogger(__name__)

PROVIDER = "CUDAExecutionProvider"
NOT_CAPTURED = -1
"""In place of a graph's number: the run is neither captured nor launched as a graph."""


@dataclass(frozen=True)
class Sessions:
    """
    Attributes:
        encoder, decoder, candidates: sessions of ONNX Runtime; None: the bundle has no such graph
        captures: whether runs of the decoder can be captured as CUDA graphs
    """

    encoder: Any
    decoder: Any
    candidates: Any
    captures: bool


OpenSessions = Callable[[int], Sessions]
"""Opens the sessions for a stream."""


def open_sessions(bundle: Bundle, stream: int) -> Sessions:
    """Sessions that enqueue their work in the stream.

    The provider refuses to capture a graph with a node that needs the processor for more than
    shapes. Such a graph runs node by node.

    Raises:
        BackendError: the provider cannot load the graphs.
    """
    graphs = bundle.manifest.graphs
    encoder = _session(bundle, stream, "encoder") if "encoder" in graphs else None
    candidates = _session(bundle, stream, "candidates") if "candidates" in graphs else None
    if "decoder" not in graphs:
        return Sessions(encoder, None, candidates, captures=False)
    try:
        decoder = _session(bundle, stream, "decoder", captures=True)
        return Sessions(encoder, decoder, candidates, captures=True)
    except BackendError as error:
        decoder = _session(bundle, stream, "decoder")
        log.info("%s: decoding without CUDA graphs: %s", bundle.directory, str(error))
        return Sessions(encoder, decoder, candidates, captures=False)


def run_options(graph: int) -> onnxruntime.RunOptions:
    """Of a run that is enqueued and not waited for, captured under this number.

    Before ONNX Runtime's change 28686 (June 2026) a captured graph is waited for regardless.
    """
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("gpu_graph_id", str(graph))
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return options


def provider_options(stream: int, *, captures: bool) -> dict[str, str]:
    return {
        "device_id": "0",
        "user_compute_stream": str(stream),
        "enable_cuda_graph": "1" if captures else "0",
        "arena_extend_strategy": "kSameAsRequested",
        "use_tf32": "0",  # fp32 is fp32
    }


def _session(bundle: Bundle, stream: int, name: str, *, captures: bool = False) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # failures are raised
    graph = bundle.manifest.graphs[name]
    return open_session(
        bundle.path(graph.file),
        graph,
        options,
        PROVIDER,
        provider_options(stream, captures=captures),
        failure=cuda_failure,
    )
