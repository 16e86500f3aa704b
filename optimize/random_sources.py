"""Inputs for models that come without any; needs nothing but the runtime."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dragoman.runtime.manifest import Manifest
from dragoman.runtime.scheduling import Encodable


def random_sources(manifest: Manifest, lengths: Sequence[int], *, seed: int = 0) -> list[Encodable]:
    """Uniformly random tokens of these lengths; of a speech model, windows of noise."""
    generator = np.random.default_rng(seed)
    vocabulary = manifest.model.source_vocab_size
    if vocabulary is not None:
        return [generator.integers(0, vocabulary, length).tolist() for length in lengths]
    features = next(t.shape[1:] for t in manifest.encoder.inputs if t.role == "source")
    return [
        generator.standard_normal([int(d) for d in features]).astype(np.float32) for _ in lengths
    ]
