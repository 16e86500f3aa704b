"""Real inputs of a model's graphs: what they get while sources are decoded, step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError
from dragoman.runtime.backends.onnxruntime.cpu.backend import OnnxRuntimeBackend
from dragoman.runtime.decoding.batching import Encodable, as_batch
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.contract import ROLES, Change, GraphSpec, Slot
from dragoman.runtime.format.executables import Range, TensorRTEngines

from .random_sources import random_sources

Feed = Mapping[str, NDArray[Any]]
"""A value for each input of a graph, by name."""

ROWS = 2
"""Of texts, of the same length. Windows of audio are large: one."""
LONGEST = 32
STEPS = 16
"""Tokens of a source, and steps that are decoded, if model and engines allow as many."""
PROMPT = 5
"""Tokens of a random prompt of a decoder alone."""


@dataclass(frozen=True)
class StepInputs:
    """
    Attributes:
        rows: of every input
        encoder: its only inputs; None of a decoder alone
        decoder: by the index of the step; every step reads one token. None of an encoder alone.
    """

    rows: int
    encoder: Feed | None
    decoder: Mapping[int, Feed]


def record_steps(
    graphs: Bundle, receiver: Bundle | None = None, sources: Sequence[Encodable] | None = None
) -> StepInputs:
    """Decode a few sources greedily on the processor, and keep the inputs of the first two steps,
    of one in the middle and of the last. A prompt is read token by token; of a
    decoder alone the sources are prompts.

    Args:
        graphs: ONNX graphs that ONNX Runtime runs, with an axis for the caches' capacity
        receiver: a bundle of the same model that is to get the inputs: they have its types, and
            sizes that it takes; None: the graphs themselves
        sources: token ids or features; some that fit are decoded, of the same length, since numbers
            at padding, which nothing reads, may differ; None: random ones

    Raises:
        BackendError: ONNX Runtime cannot run the graphs.
        DragomanError: no source fits, or the receiver's numbers are bfloat16.
    """
    receiver = receiver or graphs
    manifest, model = graphs.manifest, graphs.manifest.model
    graph_specs = receiver.manifest.model_graphs.values()
    if any(t.dtype == "bfloat16" for graph in graph_specs for t in (*graph.inputs, *graph.outputs)):
        raise DragomanError(
            f"{receiver.directory}: expected numbers that NumPy has, found bfloat16: take a bundle "
            "in fp32 or fp16"
        )
    rows, lengths, capacity = _sizes(receiver)
    if sources is None:
        sources = random_sources(manifest, [lengths.best] * rows, np.random.default_rng(0))
    source, mask = as_batch(_fitting(sources, rows, lengths), model)
    backend = OnnxRuntimeBackend(graphs, threads=None)
    if not model.has_encoder:
        prompt = source[:, : capacity - 1]
        return StepInputs(rows, None, _decoder_feeds(backend, graphs, receiver, {}, prompt))
    if source.ndim == 2 and source.shape[1] < lengths.smallest:
        missing = ((0, 0), (0, lengths.smallest - source.shape[1]))
        source = np.pad(source, missing, constant_values=model.pad_token_id)
        mask = np.pad(mask, missing)
    values: dict[Slot, NDArray[Any]] = {Slot("source"): source, Slot("source_mask"): mask}
    if manifest.head is not None and manifest.head.token_types:
        # The second half is the second text of a pair.
        second = np.arange(source.shape[1]) >= source.shape[1] - source.shape[1] // 2
        values[Slot("token_type")] = np.where(mask, second, 0).astype(source.dtype)
    encoder_feed = _feed(receiver.manifest.graphs["encoder"], values)
    if not model.has_decoder:
        return StepInputs(rows, encoder_feed, {})
    encoded = backend.encode(source, mask)
    values |= {t.slot: encoded[t.name] for t in manifest.graphs["encoder"].outputs}
    prompt = np.array([[model.start_token_id, *manifest.generation.prompt]] * rows)
    steps = _decoder_feeds(backend, graphs, receiver, values, prompt)
    return StepInputs(rows, encoder_feed, steps)


def _decoder_feeds(
    backend: OnnxRuntimeBackend,
    graphs: Bundle,
    receiver: Bundle,
    encoded: Mapping[Slot, NDArray[Any]],
    prompt: NDArray[np.int64],
) -> dict[int, Feed]:
    """Of the steps that are kept, while prompts [rows, tokens] are read and continued."""
    rows, length = prompt.shape
    _, _, capacity = _sizes(receiver)
    spec = receiver.manifest.graphs["decoder"]
    decoder = graphs.manifest.graphs["decoder"]
    values = {**encoded, Slot("read"): np.zeros((rows, 1), np.int64)}
    values |= {
        tensor.slot: np.zeros((rows, heads, capacity, size), tensor.dtype)
        for tensor in decoder.inputs
        if tensor.change is Change.APPENDED
        for heads, size in [(int(tensor.shape[1]), int(tensor.shape[3]))]
    }
    steps = min(capacity, max(STEPS, length + 1))
    kept = {0, 1, steps // 2, steps - 1} & set(range(steps))
    feeds: dict[int, Feed] = {}
    token = prompt[:, :1]
    names = [tensor.name for tensor in decoder.outputs]
    for step in range(steps):
        values |= {Slot("token"): token, Slot("position"): np.full(rows, step)}
        if step in kept:
            feeds[step] = _feed(spec, values)
        found = dict(zip(names, backend.decoder.run(names, _feed(decoder, values)), strict=True))
        values |= {t.memory: found[t.name] for t in decoder.outputs if ROLES[t.role].updates}
        chosen = found[decoder.output("next_token").name][:, None]
        token = prompt[:, step + 1 : step + 2] if step + 1 < length else chosen
    return feeds


def _sizes(bundle: Bundle) -> tuple[int, Range, int]:
    """Rows, tokens of a source, and the capacity of caches."""
    model, engines = bundle.manifest.model, bundle.manifest.executable
    rows = 1 if model.takes_audio else ROWS
    longest = min(LONGEST, model.input_positions)
    if not model.has_encoder:
        longest = min(longest, PROMPT)
    lengths = Range(1, longest, model.input_positions)
    if not isinstance(engines, TensorRTEngines):
        steps = max(STEPS, len(bundle.manifest.generation.prompt) + 2)
        if not model.has_decoder:
            steps = 0
        return rows, lengths, min(steps, model.max_target_positions)
    profile = engines.profiles[0]  # which engines use unless another is chosen
    rows = min(max(rows, profile.batch.smallest), profile.batch.largest)
    source = profile.source
    return (
        rows,
        Range(source.smallest, min(longest, source.largest), source.largest),
        engines.capacity,
    )


def _fitting(sources: Sequence[Encodable], rows: int, lengths: Range) -> list[Encodable]:
    """Some of the most frequent length that is not too long, repeated where they are too few."""
    fitting = [s for s in sources if isinstance(s, np.ndarray) or len(s) <= lengths.largest]
    if not fitting:
        raise DragomanError(
            f"expected a source of at most {lengths.largest} tokens, found none among "
            f"{len(sources)}"
        )
    [(length, _)] = Counter(map(len, fitting)).most_common(1)
    alike = [source for source in fitting if len(source) == length]
    return [alike[row % len(alike)] for row in range(rows)]


def _feed(spec: GraphSpec, values: Mapping[Slot, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {t.name: values[t.slot].astype(t.dtype, copy=False) for t in spec.inputs}
