"""The log-mel spectrogram against Hugging Face's extractor, with PyTorch and with NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import WhisperFeatureExtractor
from transformers.models.whisper import feature_extraction_whisper
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

from dragoman.runtime.audio import LogMel
from dragoman.runtime.format.plain_data import Problems, from_plain, to_plain
from dragoman.settings.speech import AudioFeatures

Signal = NDArray[np.float32]
TOLERANCE = 1e-4
SECOND = 16_000


def noise(samples: int, scale: float = 0.1) -> Signal:
    generator = np.random.default_rng(samples)
    return (scale * generator.standard_normal(samples)).astype(np.float32)


def sine(samples: int, hertz: float) -> Signal:
    return np.sin(2 * np.pi * hertz * np.arange(samples) / SECOND).astype(np.float32)


def impulse(samples: int, at: int) -> Signal:
    signal = np.zeros(samples, np.float32)
    signal[at] = 1
    return signal


SIGNALS: dict[str, Callable[[], Signal]] = {
    "one sample": lambda: np.array([0.3], np.float32),
    "shorter than half a frame": lambda: noise(199),
    "shorter than a frame": lambda: noise(399),
    "a frame": lambda: noise(400),
    "a second, not a number of hops": lambda: noise(SECOND + 77),
    "silence": lambda: np.zeros(3 * SECOND, np.float32),
    "nearly silence": lambda: noise(3 * SECOND, 1e-6),
    "an impulse at the end": lambda: impulse(2 * SECOND, 2 * SECOND - 1),
    "a sine, quiet bands beside a loud one": lambda: sine(5 * SECOND, 437.3),
    "loud, then quiet": lambda: np.concatenate([noise(SECOND, 3.0), noise(SECOND, 1e-3)]),
    "just not 30 s, within the reflection": lambda: noise(30 * SECOND - 100),
    "just not 30 s, a frame before": lambda: noise(30 * SECOND - 400),
    "30 s": lambda: noise(30 * SECOND),
    "longer than 30 s": lambda: noise(31 * SECOND + 5),
}


Extractor = Callable[..., Any]


@pytest.fixture(params=["torch", "numpy"])
def extractor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Extractor:
    """It uses PyTorch wherever that is installed."""
    with_torch = request.param == "torch"
    monkeypatch.setattr(feature_extraction_whisper, "is_torch_available", lambda: with_torch)
    kind: Extractor = WhisperFeatureExtractor
    return lambda bins, **options: kind(feature_size=bins, **options)


def assert_close(found: NDArray[Any], expected: NDArray[Any]) -> None:
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", SIGNALS)
def test_the_first_window_equals_the_extractors_output(extractor: Extractor, name: str) -> None:
    signal = SIGNALS[name]()
    before = signal.copy()
    expected = extractor(80)(signal, sampling_rate=SECOND, return_tensors="np")
    assert_close(LogMel().chunk(signal), expected["input_features"][0])
    assert np.array_equal(signal, before)


@pytest.mark.parametrize("name", [name for name in SIGNALS if len(SIGNALS[name]()) > 200])
def test_a_whole_signal_equals_the_extractors_output(extractor: Extractor, name: str) -> None:
    signal = SIGNALS[name]()
    expected = extractor(128)(
        signal,
        sampling_rate=SECOND,
        truncation=False,
        padding="longest",
        return_attention_mask=True,
        return_tensors="np",
    )
    found = LogMel(bins=128).whole([signal])
    assert_close(found, expected["input_features"][0])
    assert expected["attention_mask"].sum() == found.shape[1] == len(signal) // 160


def test_a_whole_signal_shorter_than_a_hop_has_no_frames() -> None:
    assert LogMel().whole([noise(159)]).shape == (80, 0)
    assert LogMel().whole([noise(1)]).shape == (80, 0)


@pytest.mark.parametrize("bins", [80, 128])
def test_128_and_80_bins(extractor: Extractor, bins: int) -> None:
    signal = noise(2 * SECOND)
    expected = extractor(bins)(signal, sampling_rate=SECOND, return_tensors="np")
    assert_close(LogMel(bins).chunk(signal), expected["input_features"][0])


@pytest.mark.parametrize("begin", [0, 1, 777, 3000, 4000, 4004])
def test_segments_are_padded_as_in_long_form_generation(begin: int) -> None:
    features = LogMel().whole([noise(40 * SECOND + 800)])
    total = features.shape[1]
    assert total == 4005
    oracle: Any = WhisperGenerationMixin
    (expected,) = oracle._get_input_segment(
        torch.from_numpy(features)[np.newaxis],
        seek=torch.tensor([begin]),
        seek_num_frames=torch.tensor([min(total - begin, 3000)]),
        num_segment_frames=3000,
        cur_bsz=1,
        batch_idx_map=[0],
    ).numpy()
    segment = LogMel().segment(features, begin)
    assert segment.flags.c_contiguous
    np.testing.assert_array_equal(segment, expected)
    segment[:] = 9
    assert features.max() < 9


def test_sizes_follow_from_the_settings(extractor: Extractor) -> None:
    assert (LogMel().samples, LogMel().frames) == (480_000, 3000)
    short = LogMel(bins=23, chunk_seconds=5)
    assert short.frames == 500
    expected = extractor(23, chunk_length=5)(noise(7777), sampling_rate=SECOND, return_tensors="np")
    assert_close(short.chunk(noise(7777)), expected["input_features"][0])


def test_its_settings_are_plain_data() -> None:
    problems = Problems()
    settings = AudioFeatures(bins=128, hop=200, chunk_seconds=2)
    assert from_plain(AudioFeatures, to_plain(settings), "audio", problems) == settings
    assert problems == []
    log_mel = LogMel.of(settings)
    assert to_plain(log_mel) == to_plain(settings)
    assert log_mel.chunk(noise(100)).shape == (128, settings.frames) == (128, 160)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"bins": 0}, "bins: expected at least 1, found 0"),
        ({"hop": -160}, "hop: expected at least 1, found -160"),
        ({"n_fft": 401}, "n_fft: expected an even number, found 401"),
        ({"hop": 161}, "hop: expected a divisor of the 480000 samples of a window, found 161"),
    ],
)
def test_values_out_of_range_are_reported(wrong: dict[str, int], problem: str) -> None:
    assert AudioFeatures(**wrong).problems() == [problem]
    assert AudioFeatures().problems() == []
