"""Inputs of both graphs as decoding real sources gives them: what precision is judged on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError
from dragoman.runtime.backends.onnxruntime.cpu.backend import OnnxRuntimeBackend
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.manifest import GraphSpec, Manifest
from dragoman.runtime.model import Model
from dragoman.runtime.decoding.batching import Encodable, as_batch, batches, pad
from dragoman.runtime.speech.prompts import options_of_prompt

from ..random_sources import random_sources
from ..samples import Samples

SOURCES = 96
WINDOWS = 4
LONGEST = 32
"""Random sources, of a speech model windows, and the most tokens of each, where none are given."""

MOST = 512
"""Sources that are decoded: more take memory and change nothing."""


class Observed(NamedTuple):
    """A batch of inputs of a graph.

    Attributes:
        rows: bool [B, T], which positions are no padding
    """

    samples: Samples
    rows: NDArray[np.bool_]


def observe(
    bundle: Bundle, sources: Sequence[Encodable] | None = None
) -> dict[str, list[Observed]]:
    """Inputs of encoder and decoder, batch by batch; the decoder's hold all target positions.

    Args:
        bundle: neutral, fp32
        sources: token ids, or features; of many, some spread evenly; random ones if None

    Raises:
        DragomanError: there are none.
    """
    facts = bundle.manifest.model
    given = _random(bundle.manifest) if sources is None else _spread(sources)
    if not given:
        raise DragomanError("calibration: expected at least one source, found none")
    backend = OnnxRuntimeBackend(bundle, threads=None)
    limit = min(LONGEST, bundle.manifest.default_max_new_tokens)
    results = Model(bundle, backend).generate(
        given, max_new_tokens=limit, **options_of_prompt(bundle.manifest)
    )
    targets = [list(result.tokens) for result in results]
    prompt = [facts.start_token_id, *bundle.manifest.rules.prompt]
    observed: dict[str, list[Observed]] = {"encoder": [], "decoder": []}
    speech = facts.source_vocab_size is None
    lengths = [facts.max_source_positions if speech else len(source) for source in given]
    for batch in batches(lengths, max_batch_size=32, max_batch_tokens=4096):
        source, mask = as_batch([given[i] for i in batch], facts)
        forced = [[*prompt, *targets[i]][:limit] for i in batch]
        tokens, written = pad(forced, facts.pad_token_id)
        cache = np.zeros(
            (len(batch), facts.num_heads, tokens.shape[1], facts.head_size), np.float32
        )
        by_role = {
            "source": source,
            "source_mask": mask,
            "token": tokens,
            "position": np.zeros(len(batch), np.int64),
            "past_key": cache,
            "past_value": cache,
        }
        observed["encoder"].append(Observed(_named(bundle.manifest.encoder, by_role), mask))
        cross = backend.encode(source, mask)
        observed["decoder"].append(
            Observed(_named(bundle.manifest.decoder, by_role) | cross, written)
        )
    return observed


def _spread(sources: Sequence[Encodable]) -> list[Encodable]:
    chosen = np.linspace(0, len(sources) - 1, min(len(sources), MOST)).astype(int)
    return [sources[i] for i in chosen]


def _random(manifest: Manifest) -> Sequence[Encodable]:
    generator = np.random.default_rng(0)
    longest = min(LONGEST, manifest.model.max_source_positions)
    speech = manifest.model.source_vocab_size is None
    lengths = generator.integers(1, longest + 1, WINDOWS if speech else SOURCES).tolist()
    return random_sources(manifest, lengths, generator)


def _named(spec: GraphSpec, by_role: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {t.name: by_role[t.role] for t in spec.inputs if t.role in by_role}
