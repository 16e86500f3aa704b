"""Inputs of both graphs, recorded while decoding real sources; precision is judged on them."""

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
    """

    samples: Samples
    rows: NDArray[np.bool_]


def observe(
    bundle: Bundle, sources: Sequence[Encodable] | None = None
) -> dict[str, list[Observed]]:
    """Decode sources and return the inputs of encoder and decoder, batch by batch.

    Each batch of the decoder holds all target positions at once.

    Args:
        bundle: neutral, fp32
        sources: token ids, or features; if there are many, a subset spread evenly is used; random
            ones if None

    Raises:
        DragomanError: `sources` is empty.
    """
    manifest, model = bundle.manifest, bundle.manifest.model
    chosen = _random(manifest) if sources is None else _spread(sources)
    if not chosen:
        raise DragomanError("calibration: expected at least one source, found none")
    backend = OnnxRuntimeBackend(bundle, threads=None)
    limit = min(LONGEST, manifest.default_max_new_tokens)
    results = Model(bundle, backend).generate(
        chosen, greedy_options(manifest), max_new_tokens=limit
    )
    targets = [list(result.tokens) for result in results]
    prompt = [model.start_token_id, *manifest.generation.prompt]
    observed: dict[str, list[Observed]] = {name: [] for name in manifest.model_graphs}
    lengths = [model.max_source_positions if model.takes_audio else len(s) for s in chosen]
    for batch in batches(lengths, max_batch_size=32, max_batch_tokens=4096):
        source, mask = as_batch([chosen[i] for i in batch], model)
        forced = [[*prompt, *targets[i]][:limit] for i in batch]
        tokens, written = pad(forced, model.pad_token_id)
        cache = np.zeros(
            (len(batch), model.num_heads, tokens.shape[1], model.head_size), np.float32
        )
        by_role: dict[Role, NDArray[Any]] = {
            "source": source,
            "source_mask": mask,
            "token": tokens,
            "position": np.zeros(len(batch), np.int64),
        }
        encoder, decoder = manifest.graphs["encoder"], manifest.graphs["decoder"]
        observed["encoder"].append(Observed(_named(encoder, by_role), mask))
        caches = {t.name: cache for t in decoder.inputs if t.change is Change.APPENDED}
        cross = backend.encode(source, mask)
        observed["decoder"].append(Observed(_named(decoder, by_role) | caches | cross, written))
    return observed


def _spread(sources: Sequence[Encodable]) -> list[Encodable]:
    chosen = np.linspace(0, len(sources) - 1, min(len(sources), MOST)).astype(int)
    return [sources[i] for i in chosen]


def _random(manifest: Manifest) -> Sequence[Encodable]:
    generator = np.random.default_rng(0)
    longest = min(LONGEST, manifest.model.max_source_positions)
    speech = manifest.model.takes_audio
    lengths = generator.integers(1, longest + 1, WINDOWS if speech else SOURCES).tolist()
    return random_sources(manifest, lengths, generator)


def _named(spec: GraphSpec, by_role: dict[Role, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {t.name: by_role[t.role] for t in spec.inputs if t.role in by_role}
