"""Inputs of a bundle's graphs, recorded while they run; precision is judged on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError
from dragoman.runtime.backends.onnxruntime.cpu.backend import OnnxRuntimeBackend
from dragoman.runtime.decoding.batching import Encodable, as_batch, batches, pad
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.contract import Change, GraphSpec, Role
from dragoman.runtime.format.manifest import Manifest
from dragoman.runtime.model import Model
from dragoman.runtime.speech.prompts import greedy_options

from ..random_sources import random_sources
from ..samples import Samples

SOURCES = 96
WINDOWS = 4
LONGEST = 32
"""Without calibration data: the number of random sources, for speech models the number of windows,
and the maximum number of tokens in each source. Outputs are limited to as many tokens."""

MOST = 512
"""Maximum number of sources that are decoded: more take memory and do not change the result."""


class Observed(NamedTuple):
    """A batch of inputs of a graph.

    Attributes:
        samples: by name of the input
        rows: bool [B, T], False at padding
        random: the sources are, so that their ranges say little about those of others
    """

    samples: Samples
    rows: NDArray[np.bool_]
    random: bool = False


def observe(
    bundle: Bundle,
    sources: Sequence[Encodable] | None = None,
    types: Sequence[Sequence[int]] | None = None,
) -> dict[str, list[Observed]]:
    """Decode sources and return the inputs of each graph, batch by batch.

    Each batch of a decoder holds all target positions at once.

    Args:
        bundle: neutral, fp32
        sources: token ids, or features; if there are many, a subset spread evenly is used; random
            ones if None
        types: of an encoder alone, the segment of each token of the sources; None: all 0

    Raises:
        DragomanError: `sources` is empty.
    """
    manifest, model = bundle.manifest, bundle.manifest.model
    random = sources is None
    given = _random(manifest) if sources is None else sources
    if not given:
        raise DragomanError("calibration: expected at least one source, found none")
    kept = _spread(len(given))
    chosen = [given[i] for i in kept]
    backend = OnnxRuntimeBackend(bundle, threads=None)
    targets = _targets(Model(bundle, backend), chosen) if model.has_decoder else None
    observed: dict[str, list[Observed]] = {name: [] for name in manifest.model_graphs}
    lengths = [model.max_source_positions if model.takes_audio else len(s) for s in chosen]
    for batch in batches(lengths, max_batch_size=32, max_batch_tokens=4096):
        by_role: dict[Role, NDArray[Any]] = {}
        if model.has_encoder:
            source, mask = as_batch([chosen[i] for i in batch], model)
            by_role |= {"source": source, "source_mask": mask, "token_type": np.zeros_like(source)}
            if types is not None:
                by_role["token_type"], _ = pad([types[kept[i]] for i in batch], 0)
            encoder = manifest.graphs["encoder"]
            observed["encoder"].append(Observed(_named(encoder, by_role), mask, random))
        if targets is not None:
            # An encoder alone is not run: its outputs are nobody's inputs, and may be large.
            encoded = backend.encode(source, mask) if model.has_encoder else {}
            tokens, written = pad([targets[i] for i in batch], model.pad_token_id)
            positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
            by_role |= {"token": tokens, "read": positions}
            by_role["position"] = np.zeros(len(batch), np.int64)
            decoder = manifest.graphs["decoder"]
            caches = _empty_caches(decoder, *tokens.shape)
            samples = _named(decoder, by_role) | caches | encoded
            observed["decoder"].append(Observed(samples, written, random))
    return observed


def _targets(model: Model, sources: Sequence[Encodable]) -> list[list[int]]:
    """What decoders read for each source: prompt and output."""
    manifest, spec = model.manifest, model.manifest.model
    limit = min(LONGEST, manifest.default_max_new_tokens)
    results = model.generate(sources, greedy_options(manifest), max_new_tokens=limit)
    if not spec.has_encoder:
        return [
            [*map(int, source), *result.tokens][: spec.max_target_positions]
            for source, result in zip(sources, results, strict=True)
        ]
    prompt = [spec.start_token_id, *manifest.generation.prompt]
    return [[*prompt, *result.tokens][:limit] for result in results]


def _empty_caches(decoder: GraphSpec, rows: int, capacity: int) -> dict[str, NDArray[Any]]:
    return {
        t.name: np.zeros((rows, int(t.shape[1]), capacity, int(t.shape[3])), np.float32)
        for t in decoder.inputs
        if t.change is Change.APPENDED
    }


def _spread(count: int) -> list[int]:
    """The indices of those that are used of so many sources."""
    chosen: list[int] = np.linspace(0, count - 1, min(count, MOST)).astype(int).tolist()
    return chosen


def _random(manifest: Manifest) -> Sequence[Encodable]:
    generator = np.random.default_rng(0)
    spec = manifest.model
    positions = spec.max_source_positions if spec.has_encoder else spec.max_target_positions
    longest = min(LONGEST, positions if spec.has_encoder else positions // 2)
    speech = spec.takes_audio
    lengths = generator.integers(1, max(1, longest) + 1, WINDOWS if speech else SOURCES).tolist()
    return random_sources(manifest, lengths, generator)


def _named(spec: GraphSpec, by_role: dict[Role, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {t.name: by_role[t.role] for t in spec.inputs if t.role in by_role}
