"""Real inputs of both graphs: what they get while sources are decoded, step by step."""

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


@dataclass(frozen=True)
class StepInputs:
    """
    Attributes:
        encoder: its only inputs
        decoder: by the index of the step; every step reads one token
    """

    encoder: Feed
    decoder: Mapping[int, Feed]


def record_steps(
    graphs: Bundle, receiver: Bundle | None = None, sources: Sequence[Encodable] | None = None
) -> StepInputs:
    """Decode a few sources greedily on the processor, and keep the inputs of the first two steps,
    of one in the middle and of the last. A prompt is read token by token.

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
    if receiver.manifest.graphs["decoder"].input("past_key").dtype == "bfloat16":
        raise DragomanError(
            f"{receiver.directory}: expected numbers that NumPy has, found bfloat16: take a bundle "
            "in fp32 or fp16"
        )
    rows, lengths, capacity = _sizes(receiver)
    if sources is None:
        sources = random_sources(manifest, [lengths.best] * rows, np.random.default_rng(0))
    chosen = _fitting(sources, rows, lengths)
    source, mask = as_batch(chosen, model)
    if source.ndim == 2 and source.shape[1] < lengths.smallest:
        missing = ((0, 0), (0, lengths.smallest - source.shape[1]))
        source = np.pad(source, missing, constant_values=model.pad_token_id)
        mask = np.pad(mask, missing)
    backend = OnnxRuntimeBackend(graphs, threads=None)
    values: dict[Slot, NDArray[Any]] = {Slot("source"): source, Slot("source_mask"): mask}
    encoder, decoder = manifest.graphs["encoder"], manifest.graphs["decoder"]
    encoder_feed = _feed(receiver.manifest.graphs["encoder"], values)
    encoded = backend.encode(source, mask)
    values |= {tensor.slot: encoded[tensor.name] for tensor in encoder.outputs}
    cache = np.zeros((rows, model.num_heads, capacity, model.head_size), backend.dtype)
    values |= {tensor.slot: cache for tensor in decoder.inputs if tensor.change is Change.APPENDED}
    prompt = [model.start_token_id, *manifest.generation.prompt]
    steps = min(capacity, max(STEPS, len(prompt) + 1))
    kept = {0, 1, steps // 2, steps - 1} & set(range(steps))
    feeds = {}
    token = np.full((rows, 1), prompt[0])
    names = [tensor.name for tensor in decoder.outputs]
    for step in range(steps):
        values |= {Slot("token"): token, Slot("position"): np.full(rows, step)}
        if step in kept:
            feeds[step] = _feed(receiver.manifest.graphs["decoder"], values)
        found = dict(zip(names, backend.decoder.run(names, _feed(decoder, values)), strict=True))
        values |= {t.memory: found[t.name] for t in decoder.outputs if ROLES[t.role].updates}
        chosen_tokens = found[decoder.output("next_token").name][:, None]
        is_prompt = step + 1 < len(prompt)
        token = np.full((rows, 1), prompt[step + 1]) if is_prompt else chosen_tokens
    return StepInputs(encoder_feed, feeds)


def _sizes(bundle: Bundle) -> tuple[int, Range, int]:
    """Rows, tokens of a source, and the capacity of caches."""
    model, engines = bundle.manifest.model, bundle.manifest.executable
    rows = 1 if model.takes_audio else ROWS
    longest = min(LONGEST, model.max_source_positions)
    lengths = Range(1, longest, model.max_source_positions)
    if not isinstance(engines, TensorRTEngines):
        steps = max(STEPS, len(bundle.manifest.generation.prompt) + 2)
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
