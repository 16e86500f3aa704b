"""A recording that is being decoded, window by window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..audio import Audio, AudioError, LogMel, read_audio
from ..decoding.search import TokenSequence
from .timestamps import SECONDS_PER_FRAME, TimedTokens, split_segments

AudioOrFeatures = Audio | NDArray[np.float32]
"""Audio, or its features: float32 [bins, frames]."""


class Recording:
    """The features of a recording, the position of the next window and the output so far.

    Attributes:
        features: float32 [bins, frames], at least one window
        frames: number of frames that are not padding
        seconds: length of the audio
        language: language token; None until it is known
        timed: whether timestamps are generated
        windows: number of windows decoded so far
        ended: whether the output of every window ended with an end token
        end_token: the end token of the last window
    """

    def __init__(self, features: NDArray[np.float32], frames: int, seconds: float) -> None:
        self.features, self.frames, self.seconds = features, frames, seconds
        self.language: int | None = None
        self.timed = False
        self.segments: list[TimedTokens] = []
        self.log_probability = 0.0
        self.score = 0.0
        self.windows = 0
        self.ended = True
        self.end_token: int | None = None
        self._position = 0

    def window(self, log_mel: LogMel) -> NDArray[np.float32]:
        """Return the features of the next window: [bins, frames of a window]."""
        return log_mel.segment(self.features, self._position)

    @property
    def done(self) -> bool:
        """Whether all windows are decoded."""
        return self._position >= self.frames

    def add(self, output: TokenSequence, timestamp_begin: int | None, window: int) -> None:
        """Add the output for the current window and advance to the next.

        Timestamp tokens are interpreted even if none were requested, as in Hugging Face. Segments
        are cut at the end of the audio.

        Args:
            timestamp_begin: the timestamp token of 0.00 s; None: the model has no timestamps, and
                the window is the whole audio
            window: number of frames of a window
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
    """Read audio and compute its features; features are used as they are.

    Audio shorter than a window is padded with silence, which is also decoded, as in Hugging Face.

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
