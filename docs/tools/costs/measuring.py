"""Measures the time of each part of a model with ONNX Runtime's profiler."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import onnx_ir as ir

from docs.tools.costs.counting import Part
from docs.tools.operator_profile import ProfiledBackend
from dragoman.optimize.step_inputs import random_sources
from dragoman.runtime import Bundle
from dragoman.runtime.decoding.request import as_batch
from dragoman.runtime.format.contract import GraphName

Times = dict[Part, float]
"""Milliseconds."""

ATTENTIONS = frozenset({"Attention", "GroupQueryAttention", "MultiHeadAttention"})
ACTIVATIONS = frozenset({"BiasGelu", "FastGelu", "Gelu", "QuickGelu", "Relu", "Sigmoid", "Tanh"})
WEIGHTS: Mapping[str, Part] = {
    ".cross_attention.key.": "cross keys and values",
    ".cross_attention.value.": "cross keys and values",
    ".cross_attention.": "projections",
    ".self_attention.": "projections",
    ".feed_forward.": "feed-forward",
    ".output.bias": "output",
}
"""By what the name of a weight contains, in the graph that it is in; the first that fits. Other
products are those of the token embedding, transposed or not."""
PRODUCTS = frozenset({"MatMul", "Gemm", "FusedMatMul", "MatMulNBits", "QGemm"}) | {
    "DynamicQuantizeMatMul",
    "MatMulIntegerToFloat",
}


def encoder_times(
    bundle: Bundle, lengths: Sequence[int], *, threads: int, runs: int
) -> list[Times]:
    """Time the encoder on one source of each length, as the minimum of several runs.

    Runs of all lengths take turns.
    """
    backend = ProfiledBackend(bundle, threads=threads)
    for _ in range(runs + 1):
        for length in lengths:
            backend.encode(*_sources(bundle, [length]))
    times = _by_run(Path(backend.session("encoder").end_profiling()), _parts(bundle, "encoder"))
    backend.close()
    rounds = np.array(times, object).reshape(runs + 1, len(lengths))[1:]
    return [_fastest(of_length) for of_length in rounds.T]


def step_times(
    bundle: Bundle,
    lengths: Sequence[int],
    positions: Sequence[int],
    *,
    rows: int,
    threads: int,
    runs: int,
    window: int = 8,
) -> dict[tuple[int, int], Times]:
    """Time decoder steps for sources of each length, at each position.

    Each time is the median of the steps from that position, in the fastest run.

    Args:
        rows: sources that are decoded together
        window: number of steps per position
    """
    backend = ProfiledBackend(bundle, threads=threads)
    model = bundle.manifest.model
    steps = max(positions) + window
    prompt = np.full((rows, 1), model.start_token_id)
    for _ in range(runs + 1):
        for length in lengths:
            state = backend.start(*_sources(bundle, [length] * rows), prompt, steps)
            for _ in range(steps):
                state.step()
            state.close()
    times = _by_run(Path(backend.session("decoder").end_profiling()), _parts(bundle, "decoder"))
    backend.close()
    by_step = np.array(times, object).reshape(runs + 1, len(lengths), steps)[1:]
    return {
        (length, position): _fastest(
            [_medians(run) for run in by_step[:, index, position : position + window]]
        )
        for index, length in enumerate(lengths)
        for position in positions
    }


def _sources(bundle: Bundle, lengths: list[int]) -> tuple[np.ndarray, np.ndarray]:
    sources = random_sources(bundle.manifest, lengths, np.random.default_rng(0))
    return as_batch(sources, bundle.manifest.model)


def _parts(bundle: Bundle, graph: GraphName) -> dict[str, Part]:
    """Return the part of each node of a graph, by node name."""
    spec = bundle.manifest.graphs[graph]
    model = ir.load(bundle.path(spec.file))
    return {node.name or "": _part(node) for node in model.graph}


def _part(node: ir.Node) -> Part:
    if node.op_type in ATTENTIONS:
        key = node.inputs[1]
        return "cross-attention" if _is_of_source(key) else "self-attention"
    if node.op_type in ACTIVATIONS:
        return "feed-forward"
    names = [value.name or "" for value in node.inputs if value and value.is_initializer()]
    if node.op_type in PRODUCTS and _is_of_source(_widened(node.inputs[1])):
        return "cross-attention"  # over audio, row by row
    if node.op_type not in PRODUCTS and not any(name.endswith(".bias") for name in names):
        return "the rest"
    if any("residual" in name for name in names):
        return "the rest"
    for pattern, part in WEIGHTS.items():
        if any(pattern in f".{name}" for name in names):
            return part
    return "output" if node.op_type in PRODUCTS else "the rest"


def _is_of_source(value: ir.Value | None) -> bool:
    """Return whether a value is the keys or values of a source."""
    return value is not None and value.is_graph_input() and (value.name or "").startswith("cross_")


def _widened(value: ir.Value | None) -> ir.Value | None:
    node = None if value is None else value.producer()
    return value if node is None or node.op_type != "Unsqueeze" else node.inputs[0]


def _by_run(file: Path, parts: Mapping[str, Part]) -> list[Times]:
    """Return the times of each run in a profile, in order, and remove the file."""
    events = json.loads(file.read_text(encoding="utf-8"))
    file.unlink()
    runs = sorted(
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event["name"] == "model_run"
    )
    nodes = sorted(
        (event["ts"], event["name"].removesuffix("_kernel_time"), event["args"], event["dur"])
        for event in events
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")
    )
    found: list[Times] = [defaultdict(float) for _ in runs]
    run = 0
    for start, name, arguments, duration in nodes:
        while start > runs[run][1]:
            run += 1
        found[run][_part_of(name, arguments["op_name"], parts)] += duration / 1e3
    return found


def _part_of(name: str, operator: str, parts: Mapping[str, Part]) -> Part:
    """Return the part of an executed node, which ONNX Runtime may have fused from several."""
    if operator in ACTIVATIONS:
        return "feed-forward"
    return parts.get(name.partition("/")[0], "the rest")


def _fastest(runs: Iterable[Times]) -> Times:
    """Return the fastest run, which other load on the machine affects least."""
    fastest = min(runs, key=lambda times: sum(times.values()))
    return {**fastest}


def _medians(runs: Sequence[Times]) -> Times:
    names = dict.fromkeys(part for times in runs for part in times)
    return {part: median(times.get(part, 0.0) for times in runs) for part in names}
