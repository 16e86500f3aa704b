"""Reads audio files and arrays as the samples that models take."""

from __future__ import annotations

import io
import math
import os
import stat
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from dragoman.files.text_lines import printable

from .ffmpeg import AudioError, Samples, decoded, imported

Audio = str | os.PathLike[str] | bytes | NDArray[np.floating[Any]] | NDArray[np.int16]
"""The path or the bytes of an audio file, or the samples of one channel at the model's
sampling rate: floating point from -1 to 1, or int16."""

LOUDEST = 100.0
"""Limit far above full scale, which is 1; larger samples have another scale, such as int16's."""
LOWEST_RATE = 1000
ROUNDING = 1e-6
"""Seconds by which a sum of the lengths of blocks may differ from the length."""
BLOCK = 1 << 16
"""Samples that are read together."""


class AudioWarning(UserWarning):
    """A part of an audio file is missing or damaged."""


def read_audio(
    audio: Audio, sampling_rate: int = 16_000, *, longest: float = math.inf, strict: bool = False
) -> Samples:
    """Read the mono samples of a file or an array: float32 [samples], finite, at least one.

    The channels of a file are averaged and resampled. It is decoded to its end, whatever length its
    header states. If a part is missing or damaged, the rest is read with an `AudioWarning`. An
    array must be mono and at `sampling_rate`; int16 is divided by 32768.

    Args:
        longest: maximum duration of a file in seconds
        strict: whether to refuse a file of which a part is missing or damaged

    Raises:
        AudioError: the file does not exist, is not audio, is too long or has no samples; a sample
            is NaN, infinite or above `LOUDEST`; the array has another shape or dtype; or a library
            is not installed.
    """
    defects: list[str] = []
    samples = np.concatenate(list(read_blocks(audio, sampling_rate, defects, longest=longest)))
    for defect in defects:
        if strict:
            raise AudioError(defect)
        warnings.warn(defect, AudioWarning, stacklevel=2)
    return samples


def read_blocks(
    audio: Audio, sampling_rate: int, defects: list[str], *, longest: float = math.inf
) -> Iterator[Samples]:
    """Read audio like `read_audio`, and yield its samples in blocks.

    Args:
        defects: receives what is missing or damaged, after the last block

    Raises:
        AudioError: see `read_audio`.
    """
    if isinstance(audio, bytes):
        name, blocks = "audio", _read(io.BytesIO(audio), "audio", sampling_rate, defects, longest)
    elif isinstance(audio, str | os.PathLike):
        name = printable(os.fspath(audio))
        blocks = _read_path(Path(audio), name, sampling_rate, defects, longest)
    else:
        name, blocks = "audio", _from_array(audio)
    count = 0
    for block in blocks:
        # Negated, so that NaN counts as loud.
        loud = ~(np.abs(block) <= LOUDEST)
        if loud.any():
            first = int(loud.argmax())
            raise AudioError(
                f"{name}: expected samples between -1 and 1, found {block[first]} at "
                f"{count + first}"
            )
        count += len(block)
        yield block


def _from_array(audio: object) -> Iterator[Samples]:
    expected = "audio: expected a path or a one-dimensional array of floating point or int16"
    if not isinstance(audio, np.ndarray):
        raise AudioError(f"{expected}, found {type(audio).__name__}")
    kind, size = audio.dtype.kind, audio.dtype.itemsize
    if audio.ndim != 1 or not (kind == "f" or (kind, size) == ("i", 2)):
        raise AudioError(f"{expected}, found shape {list(audio.shape)} and dtype {audio.dtype}")
    if audio.size == 0:
        raise AudioError("audio: expected at least one sample, found none")
    for begin in range(0, len(audio), BLOCK):
        with np.errstate(
            over="ignore"
        ):  # too large for float32: becomes infinite, which is refused
            block = np.ascontiguousarray(audio[begin : begin + BLOCK], np.float32)
        yield block / np.float32(32768) if kind == "i" else block


def _read_path(
    path: Path, name: str, sampling_rate: int, defects: list[str], longest: float
) -> Iterator[Samples]:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise AudioError(f"{name}: expected an audio file, found a directory or a device")
        file = path.open("rb")
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise AudioError(f"{name}: expected a readable audio file: {reason}") from error
    with file:
        yield from _read(file, name, sampling_rate, defects, longest)


def _read(
    file: BinaryIO, name: str, sampling_rate: int, defects: list[str], longest: float
) -> Iterator[Samples]:
    """Decode a file and resample it, each part of a chained file from its own rate."""
    seconds, found, rate, resampler = 0.0, 0, 0, _Resampler(sampling_rate, sampling_rate)
    for block_rate, block in _in_blocks(decoded(file, name, defects)):
        if block_rate != rate:
            if block_rate < LOWEST_RATE:
                raise AudioError(
                    f"{name}: expected at least {LOWEST_RATE} samples a second, found {block_rate}"
                )
            yield from resampler.end()
            rate, resampler = block_rate, _Resampler(block_rate, sampling_rate)
        seconds += len(block) / rate
        if seconds > longest + ROUNDING:
            raise AudioError(f"{name}: expected at most {longest:g} s of audio, found more")
        for resampled in resampler.add(block):
            found += len(resampled)
            yield resampled
    for resampled in resampler.end():
        found += len(resampled)
        yield resampled
    if not found and defects:
        raise AudioError(defects[0])
    if not found:
        raise AudioError(
            f"{name}: expected at least one sample at {sampling_rate} Hz, found "
            f"{round(seconds * rate)}" + (f" at {rate} Hz" if rate else "")
        )


class _Resampler:
    def __init__(self, rate: int, target_rate: int) -> None:
        self._stream = None
        if rate != target_rate:
            soxr = imported("soxr")
            self._stream = soxr.ResampleStream(rate, target_rate, 1, "float32", "HQ")

    def add(self, block: Samples, *, last: bool = False) -> Iterator[Samples]:
        if self._stream is not None:
            block = self._stream.resample_chunk(block, last=last)
        if len(block):
            yield block

    def end(self) -> Iterator[Samples]:
        return self.add(np.empty(0, np.float32), last=True)


def _in_blocks(pieces: Iterator[tuple[int, Samples]]) -> Iterator[tuple[int, Samples]]:
    held: list[Samples] = []
    held_rate = count = 0
    for rate, piece in pieces:
        if held and (rate != held_rate or count >= BLOCK):
            yield held_rate, np.concatenate(held)
            held, count = [], 0
        held_rate, count = rate, count + len(piece)
        held.append(piece)
    if held:
        yield held_rate, np.concatenate(held)
