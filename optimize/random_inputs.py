"""Random inputs in place of calibration data. They need only the runtime."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dragoman.runtime.audio import LogMel
from dragoman.runtime.decoding.batching import EncoderInput
from dragoman.runtime.format.manifest import Manifest

FORMANTS = ((250, 900), (850, 2500), (2300, 3500))
"""Ranges of the first three formants of most vowels, in hertz, roughly after Peterson & Barney
(1952)."""


def random_sound(generator: np.random.Generator, rate: int, samples: int) -> NDArray[np.float32]:
    """Make random sound: vowels and hisses with pauses, up to a random time, then near silence.

    It has no words, but the loudness, spectrum and pauses of a voice. White noise would drive a
    trained encoder to values that it never reaches on speech.

    Args:
        rate: sampling rate in hertz, such as 16,000
        samples: length of the result

    Returns:
        [samples], in [-1, 1]
    """
    signal = 1e-4 * generator.standard_normal(samples)
    end = int(samples * generator.uniform(0.2, 1))
    start = int(generator.uniform(0, min(0.5 * rate, 0.5 * end)))
    while start < end:
        length = min(int(rate * generator.uniform(0.06, 0.3)), samples - start)
        syllable = _vowel if generator.random() < 0.7 else _hiss
        loudness = 10 ** generator.uniform(-1.7, -0.5) * np.hanning(length)
        signal[start : start + length] += loudness * syllable(generator, rate, length)
        start += length + int(rate * generator.exponential(0.05))
    return np.clip(signal, -1, 1).astype(np.float32)


def _vowel(generator: np.random.Generator, rate: int, length: int) -> NDArray[np.float64]:
    """Make harmonics of a gliding pitch, strongest near random formants."""
    pitch = generator.uniform(80, 250) * np.linspace(1, generator.uniform(0.8, 1.2), length)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    harmonics = np.arange(1, int(0.4 * rate / pitch.max()))
    hertz = harmonics * pitch.mean()
    strength = np.zeros(len(harmonics))
    for fall, (low, high) in zip((1, 0.5, 0.2), FORMANTS, strict=True):
        strength += fall / (1 + ((hertz - generator.uniform(low, high)) / 100) ** 2)
    sound = np.sin(phase[:, None] * harmonics) @ strength
    return np.asarray(sound / max(1e-9, np.abs(sound).max(initial=0)))


def _hiss(generator: np.random.Generator, rate: int, length: int) -> NDArray[np.float64]:
    """Make noise that grows louder with frequency, like s and f."""
    return 0.3 * np.diff(generator.standard_normal(length + 1))


def random_sources(
    manifest: Manifest, lengths: Sequence[int], generator: np.random.Generator
) -> list[EncoderInput]:
    """Make sources, or prompts of a decoder-only model, of uniformly random tokens.

    For a speech model, make as many windows of random sound, as features.

    Args:
        lengths: number of tokens of each source
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
