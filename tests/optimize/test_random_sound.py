"""Random sound: as loud as a voice, with pauses, and then silence."""

from __future__ import annotations

import numpy as np
import pytest

from dragoman.optimize.step_inputs import random_sound


@pytest.mark.parametrize(
    "rate, samples", [(16000, 480_000), (8000, 4001), (22050, 100), (16000, 1)]
)
@pytest.mark.parametrize("seed", range(4))
def test_any_window_at_any_rate(rate: int, samples: int, seed: int) -> None:
    sound = random_sound(np.random.default_rng(seed), rate, samples)
    again = random_sound(np.random.default_rng(seed), rate, samples)
    np.testing.assert_array_equal(sound, again)
    assert sound.shape == (samples,)
    assert sound.dtype == np.float32
    assert np.abs(sound).max() <= 1
    assert samples == 1 or sound.any()


def test_syllables_pauses_and_silence() -> None:
    for seed in range(8):
        sound = random_sound(np.random.default_rng(seed), 16000, 480_000)
        loudness = np.sqrt(np.mean(sound.reshape(-1, 160) ** 2, axis=1))  # of 10 ms each
        spoken = np.flatnonzero(loudness > 0.01)
        assert 0.05 * len(loudness) < len(spoken) < len(loudness)
        within = loudness[spoken[0] : spoken[-1]]
        assert (within < 0.001).any()
        assert (loudness[spoken[-1] + 20 :] < 0.001).all()


def test_vowels_have_harmonics() -> None:
    """Most of the power below 4 kHz is in narrow lines, unlike that of noise."""
    sound = random_sound(np.random.default_rng(1), 16000, 480_000)
    frames = sound.reshape(-1, 1600) * np.hanning(1600)
    power = np.abs(np.fft.rfft(frames))[:, :400] ** 2
    loud = power[power.sum(axis=1) > 0.1 * power.sum(axis=1).max()]
    peaks = np.sort(loud, axis=1)[:, -40:].sum(axis=1) / loud.sum(axis=1)
    assert np.median(peaks) > 0.8
