"""Audio to compare and to calibrate on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman import DragomanError
from dragoman.runtime.audio import AudioError, LogMel, read_audio

SUFFIXES = frozenset({".aif", ".aiff", ".au", ".flac", ".mp3", ".oga", ".ogg", ".opus", ".wav"})


def recordings(place: Path) -> list[Path]:
    """The audio files that are meant by a directory, whose other files are passed over, by one of
    them, or by a file that lists paths: a line each, relative to it, texts after tabs passed over.

    Raises:
        DragomanError: there are none, or the list cannot be read.
    """
    if place.is_dir():
        found = sorted(file for file in place.iterdir() if file.suffix.lower() in SUFFIXES)
    elif place.suffix.lower() in SUFFIXES:
        found = [place]
    else:
        try:
            lines = place.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise DragomanError(
                f"{place}: expected a directory of audio files, or a list of them: {error}"
            ) from error
        found = [place.parent / line.split("\t")[0] for line in lines if line.strip()]
    if not found:
        raise DragomanError(f"{place}: expected at least one audio file, found none")
    return found


def windows(files: list[Path], log_mel: LogMel) -> list[NDArray[np.float32]]:
    """The features of all windows, side by side, of some files: [bins, frames] each.

    Raises:
        DragomanError: a file cannot be read.
    """
    found = []
    for file in files:
        try:
            signal = read_audio(file, log_mel.sampling_rate)
        except AudioError as error:
            raise DragomanError(str(error)) from error
        starts = range(0, len(signal), log_mel.samples)
        found += [log_mel.chunk(signal[i : i + log_mel.samples]) for i in starts]
    return found
