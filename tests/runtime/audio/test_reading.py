"""Files of many kinds and arrays become mono samples at 16 kHz, or one clear error."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from dragoman.errors import DragomanError
from dragoman.runtime.audio import AudioError, read_audio

RATE = 16_000


def sine(rate: int, *, hertz: float = 997.0, seconds: float = 2.0) -> NDArray[np.float32]:
    time = np.arange(round(rate * seconds)) / rate
    return (0.5 * np.sin(2 * np.pi * hertz * time)).astype(np.float32)


def assert_is_the_sine(samples: NDArray[np.float32], tolerance: float) -> None:
    """Of the same frequency, amplitude and phase; filters need some time at both ends."""
    assert samples.dtype == np.float32
    assert len(samples) == 2 * RATE
    middle = slice(RATE // 10, -RATE // 10)
    np.testing.assert_allclose(samples[middle], sine(RATE)[middle], rtol=0, atol=tolerance)


@pytest.mark.parametrize("rate", [8000, 16_000, 22_050, 44_100, 48_000])
@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "FLOAT"])
def test_a_sine_stays_the_sine(tmp_path: Path, rate: int, subtype: str) -> None:
    path = tmp_path / "sine.wav"
    soundfile.write(path, sine(rate), rate, subtype=subtype)
    assert_is_the_sine(read_audio(path), 1e-4)
    assert np.array_equal(read_audio(str(path)), read_audio(path))


@pytest.mark.parametrize(
    ("suffix", "tolerance"), [("flac", 1e-4), ("ogg", 0.06), ("mp3", 0.06), ("aiff", 1e-4)]
)
def test_formats(tmp_path: Path, suffix: str, tolerance: float) -> None:
    path = tmp_path / f"sine.{suffix}"
    soundfile.write(path, sine(RATE), RATE)
    assert_is_the_sine(read_audio(path), tolerance)


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg", "mp3"])
def test_the_bytes_of_a_file_are_read_as_the_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"sine.{suffix}"
    soundfile.write(path, sine(22_050), 22_050)
    assert np.array_equal(read_audio(path.read_bytes()), read_audio(path))


@pytest.mark.parametrize("suffix", ["wav", "flac", "mp3"])
def test_a_file_may_be_no_longer_than_asked(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"sine.{suffix}"
    soundfile.write(path, sine(RATE), RATE)
    assert len(read_audio(path, longest=2.5)) == 2 * RATE
    with pytest.raises(AudioError, match=r"expected at most 1.9 s of audio, found more"):
        read_audio(path.read_bytes(), longest=1.9)


def test_a_file_may_be_as_long_as_asked(tmp_path: Path) -> None:
    """The sum of the lengths of its blocks is rounded."""
    soundfile.write(tmp_path / "x.wav", np.zeros(700_000), 7000)
    assert len(read_audio(tmp_path / "x.wav", longest=100.0)) == 100 * RATE


def test_16_khz_float_is_unchanged(tmp_path: Path) -> None:
    samples = np.random.default_rng(0).uniform(-1.5, 1.5, 100_001).astype(np.float32)
    soundfile.write(tmp_path / "x.wav", samples, RATE, subtype="FLOAT")
    assert np.array_equal(read_audio(tmp_path / "x.wav"), samples)


@pytest.mark.parametrize("rate", [16_000, 48_000])
def test_channels_are_averaged(tmp_path: Path, rate: int) -> None:
    wave = sine(rate)
    soundfile.write(tmp_path / "x.wav", np.stack([wave * 1.5, wave, wave * 0.5], 1), rate)
    assert_is_the_sine(read_audio(tmp_path / "x.wav"), 1e-4)


def test_frequencies_above_the_new_rate_are_filtered_out(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "x.wav", sine(48_000, hertz=11_000), 48_000)
    samples = read_audio(tmp_path / "x.wav")
    assert np.abs(samples[RATE // 10 : -RATE // 10]).max() < 1e-4


def test_another_rate_can_be_requested(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "x.wav", sine(RATE), RATE)
    assert np.array_equal(read_audio(tmp_path / "x.wav", 8000).shape, [2 * 8000])


def test_a_wav_of_unknown_length_is_read_to_its_end(tmp_path: Path) -> None:
    """Such as are written to a pipe."""
    path = tmp_path / "x.wav"
    soundfile.write(path, sine(RATE), RATE)
    content = bytearray(path.read_bytes())
    content[4:8] = content[40:44] = struct.pack("<I", 0xFFFFFFFF)
    path.write_bytes(content)
    assert_is_the_sine(read_audio(path), 1e-4)


def error_of(audio: Any) -> str:
    with pytest.raises(AudioError) as raised:
        read_audio(audio)
    assert isinstance(raised.value, DragomanError)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_paths_that_are_not_files(tmp_path: Path) -> None:
    assert "No such file or directory" in error_of(tmp_path / "x.wav")
    assert "found a directory" in error_of(tmp_path)
    assert "null" in error_of("x\0.wav")
    assert "too long" in error_of("x" * 5000)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are none")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.wav")
    assert "expected an audio file, found" in error_of(tmp_path / "x.wav")


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    soundfile.write(tmp_path / "x.wav", sine(RATE), RATE)

    def refuse(path: Path, mode: str) -> None:  # root may read everything
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    assert "Permission denied" in error_of(tmp_path / "x.wav")


@pytest.mark.parametrize("content", [b"", b"RIFF", b"not audio at all. " * 100])
@pytest.mark.parametrize("suffix", ["wav", "flac", "mp3", "raw", "txt"])
def test_not_an_audio_file(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    path.write_bytes(content)
    assert error_of(path).startswith(f"{path}: expected an audio file")


@pytest.mark.parametrize("suffix", ["flac", "ogg", "mp3", "w64"])
def test_a_file_that_ends_in_its_header(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    soundfile.write(path, sine(44_100), 44_100)
    path.write_bytes(path.read_bytes()[:60])
    assert str(path) in error_of(path)


def test_a_file_without_samples(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "x.wav", np.empty(0, np.float32), RATE)
    assert "expected at least one sample" in error_of(tmp_path / "x.wav")
    soundfile.write(tmp_path / "y.wav", np.zeros(1, np.float32), 48_000)
    assert "at 16000 Hz, found 1 at 48000 Hz" in error_of(tmp_path / "y.wav")


def test_a_file_with_an_impossible_rate(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "x.wav", sine(RATE), 1)
    assert "expected at least 1000 samples a second, found 1" in error_of(tmp_path / "x.wav")


@pytest.mark.parametrize("rate", [RATE, 44_100])
def test_a_file_with_samples_that_are_not_numbers(tmp_path: Path, rate: int) -> None:
    samples = sine(rate)
    samples[5000] = np.nan
    soundfile.write(tmp_path / "x.wav", samples, rate, subtype="FLOAT")
    assert "expected samples between -1 and 1, found nan" in error_of(tmp_path / "x.wav")


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4"])
def test_arrays_of_floating_point(dtype: Any) -> None:
    samples = np.array([0.5, -0.25, 0.0, 1.0])
    found = read_audio(samples.astype(dtype))
    assert found.dtype == np.float32
    assert found.tolist() == samples.tolist()


def test_arrays_with_strides() -> None:
    samples = np.arange(10, dtype=np.float32) / 10
    found = read_audio(samples[::-3])
    assert found.flags.c_contiguous
    assert found.tolist() == samples[::-3].tolist()


def test_int16_is_scaled() -> None:
    found = read_audio(np.array([-32768, 16384, 0], np.int16))
    assert found.dtype == np.float32
    assert found.tolist() == [-1.0, 0.5, 0.0]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: np.zeros((2, 5), np.float32), "found shape [2, 5] and dtype float32"),
        (lambda: np.zeros((), np.float32), "found shape [] and dtype float32"),
        (lambda: np.zeros(5, np.complex64), "dtype complex64"),
        (lambda: np.zeros(5, np.int32), "dtype int32"),
        (lambda: np.zeros(5, np.uint8), "dtype uint8"),
        (lambda: np.zeros(5, np.bool_), "dtype bool"),
        (lambda: np.array([0.0, None], object), "dtype object"),
        (lambda: np.array(["a"]), "dtype <U1"),
        (lambda: [0.0, 0.1], "found list"),
        (lambda: b"x.wav", "expected an audio file, intact"),
        (lambda: None, "found NoneType"),
        (lambda: np.empty(0, np.float32), "expected at least one sample, found none"),
        (lambda: np.array([0.0, np.nan]), "found nan at 1"),
        (lambda: np.array([0.0, 0.1, -np.inf]), "found -inf at 2"),
        (lambda: np.array([1e300]), "found inf at 0"),
        (lambda: np.array([20000.0]), "expected samples between -1 and 1, found 20000.0 at 0"),
    ],
)
def test_values_that_are_not_audio(make: Callable[[], Any], expected: str) -> None:
    message = error_of(make())
    assert message.startswith("audio: expected ")
    assert expected in message
