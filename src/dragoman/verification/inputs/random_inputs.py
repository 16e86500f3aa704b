"""Inputs for models that come without any."""

from __future__ import annotations

import numpy as np

from dragoman.export.model_description import audio_features
from dragoman.optimize.random_sound import random_sound
from dragoman.random_inputs import describe_sources, describe_windows
from dragoman.reference_model import ReferenceModel
from dragoman.runtime.audio import LogMel
from dragoman.runtime.decoding.batching import Encodable

from .parity_inputs import ParityInputs

RANDOM_SOURCES = 64
RANDOM_WINDOWS = 4
"""Windows are half a minute long."""
LONGEST_RANDOM = 48


def random_inputs(
    model: ReferenceModel, count: int = RANDOM_SOURCES, *, seed: int = 0
) -> ParityInputs:
    """Uniformly random tokens in ragged lengths from 1, or random sound, for models that come
    without inputs.
    """
    generator = np.random.default_rng(seed)
    config = model.config
    features = audio_features(config)
    if features is not None:
        log_mel = LogMel.of(features)
        count = min(count, RANDOM_WINDOWS)
        sounds: list[Encodable] = [
            log_mel.chunk(random_sound(generator, log_mel.sampling_rate, log_mel.samples))
            for _ in range(count)
        ]
        origins = _numbered("random sound", count)
        return ParityInputs(describe_windows(count, seed), sounds, origins, random=True)
    vocabulary, positions = config.source_vocab_size or 0, config.max_source_positions
    if not config.has_encoder:  # what is continued
        vocabulary, positions = config.target_vocab_size, config.max_target_positions // 2
    longest = max(1, min(LONGEST_RANDOM, positions))
    lengths = [1, longest, *generator.integers(1, longest + 1, size=max(0, count - 2))][:count]
    tokens = [generator.integers(0, vocabulary, size=n).tolist() for n in lengths]
    origins = _numbered("random source", count)
    return ParityInputs(describe_sources(count, seed), tokens, origins, random=True)


def _numbered(what: str, count: int) -> list[str]:
    return [f"{what} {number}" for number in range(1, count + 1)]
