"""Sound for speech models that come without any: no words, but the loudness, the spectrum and the
pauses of a voice. Noise would not do: it drives a trained encoder to values that speech never has.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FORMANTS = ((250, 900), (850, 2500), (2300, 3500))
"""Hertz between which the resonances of most vowels lie, roughly after Peterson & Barney (1952)."""


def random_sound(generator: np.random.Generator, rate: int, samples: int) -> NDArray[np.float32]:
    """Syllables, voiced or hissed, with pauses between them, up to some time, then silence.

    Args:
        rate: samples a second, thousands

    Returns:
        [samples], within -1 and 1
    """
    signal = 1e-4 * generator.standard_normal(samples)
    end = int(samples * generator.uniform(0.2, 1))
    at = int(generator.uniform(0, min(0.5 * rate, 0.5 * end)))
    while at < end:
        length = min(int(rate * generator.uniform(0.06, 0.3)), samples - at)
        syllable = _vowel if generator.random() < 0.7 else _hiss
        loudness = 10 ** generator.uniform(-1.7, -0.5) * np.hanning(length)
        signal[at : at + length] += loudness * syllable(generator, rate, length)
        at += length + int(rate * generator.exponential(0.05))
    return np.clip(signal, -1, 1).astype(np.float32)


def _vowel(generator: np.random.Generator, rate: int, length: int) -> NDArray[np.float64]:
    """Harmonics of a gliding pitch, strongest near the formants."""
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
    """Noise that rises with the frequency, as of s and f."""
    return 0.3 * np.diff(generator.standard_normal(length + 1))
