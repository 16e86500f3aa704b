"""A recording while it is decoded, window by window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..audio import Audio, AudioError, LogMel, read_audio
from ..decoding.search import Draft
from .segments import SECONDS_PER_FRAME, TimedTokens, split_segments

AudioOrFeatures = Audio | NDArray[np.float32]
"""Audio, or its features: float32 [bins, frames]."""


class Recording:
    """Features, how far they are decoded, and the output so far.

    Attributes:
        features: float32 [bins, frames], at least one window
        frames: how many of the frames are not padding
        seconds: the length of the audio
    """

    def __init__(self, features: NDArray[np.float32], frames: int, seconds: float) -> None:
        self.features, self.frames, self.seconds = features, frames, seconds
        self.language: int | None = None
        """The token of the language, once it is known."""
        self.timed = False
        """Whether it is decoded with timestamps."""
        self.segments: list[TimedTokens] = []
        self.log_probability = 0.0
        self.score = 0.0
        self.windows = 0
        """How many are decoded."""
        self.ended = True
        """Whether the output of every window has ended with an end token."""
        self.end_token: int | None = None
        """The one that ended the last window."""
        self._position = 0

    def window(self, log_mel: LogMel) -> NDArray[np.float32]:
        """The features to decode next: [bins, frames of a window]."""
        return log_mel.segment(self.features, self._position)

    @property
    def done(self) -> bool:
        return self._position >= self.frames

    def add(self, output: Draft, timestamp_begin: int | None, window: int) -> None:
        """Add the output for the current window, and advance to the next.

        Timestamp tokens are interpreted even if none were requested, as Hugging Face does. No
        segment ends after the audio.

        Args:
            timestamp_begin: the token of 0.00 s; None: the model has no timestamps, and the window
                is the whole audio
            window: frames of a window
        """
        self.windows += 1
        self.log_probability += output.log_probability
        self.score += output.score
        self.ended = self.ended and output.end_token is not None
        self.end_token = output.end_token
        if timestamp_begin is None:
            self.segments.append(TimedTokens(0.0, self.seconds, tuple(output.tokens)))
            self._position = self.frames
            return
        segments, advance = split_segments(
            tuple(output.tokens),
            timestamp_begin=timestamp_begin,
            first_frame=self._position,
            frames=min(window, self.frames - self._position),
        )
        self.segments += [replace(s, end=min(s.end, max(s.start, self.seconds))) for s in segments]
        self._position += advance


def open_recording(source: AudioOrFeatures | Sequence[Any], log_mel: LogMel) -> Recording:
    """Read audio and compute its features, or use given features.

    Audio shorter than a window is padded with silence, which is decoded like the rest, as
    Hugging Face does.

    Raises:
        AudioError: see `read_audio`; or the features are not float32, not finite, or have another
            number of bins.
    """
    if isinstance(source, np.ndarray) and source.ndim == 2:
        features = _checked(source, log_mel)
        frames = features.shape[1]
        return Recording(features, frames, frames * SECONDS_PER_FRAME)
    if isinstance(source, str) and not source:
        raise AudioError("expected the path of an audio file, found an empty text")
    signal = read_audio(source, log_mel.sampling_rate)  # type: ignore[arg-type]
    seconds = len(signal) / log_mel.sampling_rate
    if len(signal) <= log_mel.samples:
        return Recording(log_mel.chunk(signal), log_mel.frames, seconds)
    features = log_mel.whole(signal)
    return Recording(features, features.shape[1], seconds)


def _checked(features: NDArray[Any], log_mel: LogMel) -> NDArray[np.float32]:
    bins, frames = features.shape
    if features.dtype != np.float32 or bins != log_mel.bins or frames < 1:
        raise AudioError(
            f"features: expected float32 of shape [{log_mel.bins}, frames], found "
            f"{features.dtype} of shape {list(features.shape)}"
        )
    if not np.isfinite(features).all():
        raise AudioError("features: expected finite numbers, found NaN or infinity")
    return features
