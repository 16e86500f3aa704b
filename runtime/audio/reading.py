"""Reads audio files and arrays as the samples that models take.

Files are read with `soundfile` (wav, flac, ogg, and mp3 if its libsndfile supports it) and
resampled with `soxr`; both are imported when they are first needed.
"""

from __future__ import annotations

import io
import math
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError

Audio = str | os.PathLike[str] | bytes | NDArray[np.floating[Any]] | NDArray[np.int16]
"""The path or the bytes of an audio file, or the samples of one channel at the model's
sampling rate: floating point from -1 to 1, or int16."""

LOUDEST = 100.0
"""Limit far above full scale, which is 1; larger samples have another scale, such as int16's."""
LOWEST_RATE = 1000
BLOCK = 1 << 16
UNKNOWN_SIZE = 0x7FFF0000
"""Headers of files written to a pipe state about this size, or twice as much."""


class AudioError(DragomanError):
    """Audio cannot be read or is not a valid input."""


def read_audio(
    audio: Audio, sampling_rate: int = 16_000, *, longest: float = math.inf
) -> NDArray[np.float32]:
    """Read the mono samples of a file or an array: float32 [samples], finite, at least one.

    The channels of a file are averaged, and the result is resampled if the file has another rate.
    An array must be mono and at `sampling_rate`; int16 is divided by 32768.

    A few MP3 files of variable bit rate do not state their length; they are read up to the length
    that libsndfile estimates. Truncation of an Ogg file between two pages is not detected.

    Args:
        longest: maximum duration of a file in seconds

    Raises:
        AudioError: the file does not exist, is not audio, ends early, is too long or has no
            samples; a sample is NaN, infinite or above `LOUDEST`; the array has another shape or
            dtype; or a library is not installed.
    """
    if isinstance(audio, bytes):
        return _checked(_read(io.BytesIO(audio), "audio", sampling_rate, longest), "audio")
    if isinstance(audio, str | os.PathLike):
        path = _readable(Path(audio))
        return _checked(_read(path, str(path), sampling_rate, longest), str(path))
    return _checked(_from_array(audio), "audio")


def _from_array(audio: object) -> NDArray[np.float32]:
    expected = "audio: expected a path or a one-dimensional array of floating point or int16"
    if not isinstance(audio, np.ndarray):
        raise AudioError(f"{expected}, found {type(audio).__name__}")
    kind, size = audio.dtype.kind, audio.dtype.itemsize
    if audio.ndim != 1 or not (kind == "f" or (kind, size) == ("i", 2)):
        raise AudioError(f"{expected}, found shape {list(audio.shape)} and dtype {audio.dtype}")
    if audio.size == 0:
        raise AudioError("audio: expected at least one sample, found none")
    with np.errstate(over="ignore"):  # too large for float32: becomes infinite, which is reported
        samples = np.ascontiguousarray(audio, np.float32)
    return samples / np.float32(32768) if kind == "i" else samples


def _checked(samples: NDArray[np.float32], name: str) -> NDArray[np.float32]:
    # Negated, so that NaN counts as loud.
    loud = ~(np.abs(samples) <= LOUDEST)
    if loud.any():
        first = int(loud.argmax())
        raise AudioError(
            f"{name}: expected samples between -1 and 1, found {samples[first]} at {first}"
        )
    return samples


def _readable(path: Path) -> Path:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise AudioError(f"{path}: expected an audio file, found a directory or a device")
        path.open("rb").close()
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise AudioError(f"{path}: expected a readable audio file: {reason}") from error
    return path


def _read(
    file_or_path: Path | io.BytesIO, name: str, sampling_rate: int, longest: float
) -> NDArray[np.float32]:
    soundfile = _import_soundfile()
    try:
        with soundfile.SoundFile(file_or_path) as file:
            rate, stated_samples = file.samplerate, file.frames
            if rate < LOWEST_RATE:
                raise AudioError(
                    f"{name}: expected at least {LOWEST_RATE} samples a second, found {rate}"
                )
            _refuse_truncated(name, file.extra_info)
            resampler, pieces = _Resampler(rate, sampling_rate), []
            for block in _mono_blocks(file):
                # The length that a file states may be wrong.
                if max(stated_samples, resampler.taken + len(block)) > longest * rate:
                    raise AudioError(f"{name}: expected at most {longest:g} s of audio, found more")
                pieces.append(resampler.add(block))
            pieces.append(resampler.end())
    # TypeError: for names that end with .raw, soundfile requires an explicit format.
    except (soundfile.SoundFileError, TypeError) as error:
        raise AudioError(
            f"{name}: expected an audio file, intact and in a known format: "
            f"{getattr(error, 'error_string', error)}"
        ) from error
    # The stated length of an MP3 may be an estimate, accurate to one percent.
    if resampler.taken < 0.99 * stated_samples:
        raise _truncated(name, f"{stated_samples} samples", resampler.taken)
    samples = np.concatenate(pieces)
    if samples.size == 0:
        raise AudioError(
            f"{name}: expected at least one sample at {sampling_rate} Hz, found {resampler.taken} "
            f"at {rate} Hz"
        )
    return samples


def _mono_blocks(file: Any) -> Iterator[NDArray[np.float32]]:
    while len(block := file.read(BLOCK, dtype="float32", always_2d=True)):
        yield block[:, 0] if block.shape[1] == 1 else block.mean(axis=1)


class _Resampler:
    """Resamples a signal block by block; returns it unchanged if the rates are equal."""

    def __init__(self, rate: int, target_rate: int) -> None:
        self.taken = 0
        """Number of samples read so far."""
        self._stream = None
        if rate != target_rate:
            self._stream = _import_soxr().ResampleStream(rate, target_rate, 1, "float32", "HQ")

    def add(self, block: NDArray[np.float32]) -> NDArray[np.float32]:
        self.taken += len(block)
        return self._resampled(block, last=False)

    def end(self) -> NDArray[np.float32]:
        return self._resampled(np.empty(0, np.float32), last=True)

    def _resampled(self, block: NDArray[np.float32], last: bool) -> NDArray[np.float32]:
        if self._stream is None:
            return block
        resampled: NDArray[np.float32] = self._stream.resample_chunk(block, last=last)
        return resampled


def _refuse_truncated(name: str, log: str) -> None:
    """Reject a truncated file, which libsndfile reads as a shorter one and only logs."""
    pattern = r"^ ?(?:data|SSND|riff|  Data Size  ) : (\d+) \(should be (\d+)\)"
    for stated, found in re.findall(pattern, log, re.MULTILINE):
        if int(found) < int(stated) < UNKNOWN_SIZE:
            raise _truncated(name, f"{stated} bytes of samples", int(found))


def _truncated(name: str, stated: str, found: int) -> AudioError:
    return AudioError(f"{name}: the file ends early: expected {stated}, found {found}")


def _import_soundfile() -> Any:
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: its library cannot be loaded
        raise _missing("soundfile", error) from error
    return soundfile


def _import_soxr() -> Any:
    try:
        import soxr
    except (ImportError, OSError) as error:
        raise _missing("soxr", error) from error
    return soxr


def _missing(package: str, error: Exception) -> AudioError:
    return AudioError(
        f"the package {package} cannot be imported ({error}): pip install 'dragoman[audio]'"
    )
