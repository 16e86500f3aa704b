"""Random sources, for lack of calibration data; needs only the runtime."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dragoman.runtime.audio import LogMel
from dragoman.runtime.decoding.batching import Encodable
from dragoman.runtime.format.manifest import Manifest

from .random_sound import random_sound


def random_sources(
    manifest: Manifest, lengths: Sequence[int], generator: np.random.Generator
) -> list[Encodable]:
    """Sources, or prompts of a decoder alone, of uniformly random tokens with these lengths; for a
    speech model, as many windows of random sound, as features.
    """
    vocabulary = manifest.model.source_vocab_size
    if not manifest.model.has_encoder:
        vocabulary = manifest.model.target_vocab_size
    if vocabulary is not None:
        return [generator.integers(0, vocabulary, length).tolist() for length in lengths]
    assert manifest.audio is not None
    log_mel = LogMel.of(manifest.audio)
    return [
        log_mel.chunk(random_sound(generator, log_mel.sampling_rate, log_mel.samples))
        for _ in lengths
    ]
