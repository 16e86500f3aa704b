"""Recordings that are decoded window by window."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from ..audio import Audio, AudioError, AudioWarning, LogMel, read_blocks
from ..audio.voice_activity import RATE, Voice, VoiceFilter
from ..backends.interface import Encoded
from ..decoding.search import TokenSequence
from .timestamps import SECONDS_PER_FRAME, TimedTokens, split_segments


@dataclass(frozen=True)
class Spectrogram:
    """The features of a recording."""

    features: NDArray[np.float32]
    """float32 [bins, frames], at least one window."""
    frames: int
    """Number of frames that are not padding."""
    seconds: float
    """Length of the audio, without what was left out."""
    defects: tuple[str, ...] = ()
    voice: Voice | None = None
    """Where the recording has speech, if the rest was left out."""

    @property
    def duration(self) -> float:
        """The length of the whole recording in seconds."""
        return self.seconds if self.voice is None else self.voice.seconds

    def original(self, start: float, end: float) -> tuple[float, float]:
        """Return the times in the recording of two times in what was kept of it."""
        return (start, end) if self.voice is None else self.voice.original(start, end)


AudioOrFeatures = Audio | NDArray[np.float32] | Spectrogram
"""Audio, or its features: float32 [bins, frames]."""


@dataclass(frozen=True)
class RecordingState:
    """The state of a recording after a window, without segments of earlier states."""

    position: int
    """First frame of the next window."""
    segments: tuple[TimedTokens, ...]
    """Segments that are new in this state."""
    language: int | None
    language_probability: float | None
    context: tuple[int, ...]
    windows: int
    ended: bool
    end_token: int | None
    """`language`, `language_probability`, `context`, `windows`, `ended` and `end_token`: see
    `Recording`."""
    log_probability: float
    score: float
    """`log_probability` and `score`: see `Recording`."""


class Recording:
    """A recording or a part of it, the position of its next window and the output so far.

    Args:
        begin, end: first frame, and the one after the last

    Attributes:
        position: first frame of the next window
    """

    def __init__(self, audio: Spectrogram, begin: int = 0, end: int | None = None) -> None:
        self.audio = audio
        self.language: int | None = None
        """Language token; None until it is known."""
        self.language_probability: float | None = None
        self.context: tuple[int, ...] = ()
        """Tokens that the model reads before the next window."""
        self.hotwords: tuple[int, ...] = ()
        self.prefix: tuple[int, ...] = ()
        """Tokens that the output of the first window begins with."""
        self.attempt = 0
        """Number of earlier attempts at the next window."""
        self.encoded: Encoded | None = None
        """The next window, if an attempt has kept what the encoder made of it."""
        self.timed = False
        self.segments: list[TimedTokens] = []
        self.log_probability = 0.0
        self.score = 0.0
        self.windows = begin
        """Number of windows decoded so far, counted from `begin`."""
        self.ended = True
        """Whether the output of every window ended with an end token."""
        self.end_token: int | None = None
        """The end token of the last window."""
        self._begin = self.position = begin
        self._end = audio.features.shape[1] if end is None else end

    def window(self, log_mel: LogMel) -> NDArray[np.float32]:
        """Return the features of the next window: [bins, frames of a window]."""
        return log_mel.segment(self.audio.features[:, : self._end], self.position)

    @property
    def done(self) -> bool:
        """Whether all windows are decoded."""
        return self.position >= min(self.audio.frames, self._end)

    @property
    def frames(self) -> int:
        """The number of frames."""
        return self._end - self._begin

    @property
    def at_begin(self) -> bool:
        """Whether the next window is the first one."""
        return self.position == self._begin

    @property
    def decoded_frames(self) -> int:
        """The number of frames that are decoded."""
        return self.position - self._begin

    @property
    def offset(self) -> float:
        """The seconds at which the next window begins."""
        return self.position * SECONDS_PER_FRAME

    @property
    def spoken(self) -> float:
        """The seconds at which the last segment ends."""
        return self.segments[-1].end if self.segments else self._begin * SECONDS_PER_FRAME

    def state(self, written: int) -> RecordingState:
        """Return the state after a window."""
        names = {field.name for field in fields(RecordingState)} - {"segments"}
        values = {name: getattr(self, name) for name in names}
        return RecordingState(**values, segments=tuple(self.segments[written:]))

    def restore(self, state: RecordingState) -> None:
        """Continue from a state whose earlier states were restored before."""
        self.segments += state.segments
        for name in vars(state).keys() - {"segments"}:
            setattr(self, name, getattr(state, name))

    def spoken_frames(self, log_mel: LogMel) -> int:
        """Return the number of frames of the next window that are audio."""
        left = min(self.audio.frames, self._end) - self.position
        return min(log_mel.frames, max(0, left))

    def add(
        self,
        output: TokenSequence,
        tokens: tuple[int, ...],
        timestamp_begin: int | None,
        window: int,
        words: Callable[[list[TimedTokens]], list[TimedTokens]] = lambda segments: segments,
    ) -> None:
        """Add the output for the current window and advance to the next.

        Timestamp tokens are interpreted even if none were requested, as in Hugging Face.

        Args:
            tokens: the tokens of the output, with those that it was made to begin with
            timestamp_begin: the timestamp token of 0.00 s; None: the window is the whole audio
            words: adds the times of words to segments
        """
        self._begin_next()
        self.log_probability += output.log_probability
        self.score += output.score
        self.ended = self.ended and output.end_token is not None
        self.end_token = output.end_token
        if timestamp_begin is None:
            whole = TimedTokens(0.0, self.audio.seconds, tokens)
            self.segments += words([whole])
            self.position = self._end
            return
        segments, advance = split_segments(
            tokens,
            timestamp_begin=timestamp_begin,
            first_frame=self.position,
            frames=self._frames_of(window),
        )
        kept: list[TimedTokens] = []
        for segment in segments:
            kept.append(self._within(segment, kept[-1].end if kept else self.spoken))
        self.segments += words(kept)
        self.position += advance

    def leave_out(self, window: int) -> None:
        """Advance to the next window; this one has no speech."""
        self._begin_next()
        self.position += self._frames_of(window)

    def _frames_of(self, window: int) -> int:
        return min(window, self._end - self.position)

    def _begin_next(self) -> None:
        self.windows += 1
        self.attempt, self.encoded = 0, None

    def _within(self, segment: TimedTokens, previous: float) -> TimedTokens:
        """Return a segment with times within the audio.

        Whisper may date text to the padding of a window. Such text begins after the previous
        segment.
        """
        seconds = min(self.audio.seconds, self._end * SECONDS_PER_FRAME)
        if segment.start < seconds:
            return replace(segment, end=min(segment.end, seconds))
        return replace(segment, start=previous, end=seconds)


def parts_of(audio: Spectrogram, window: int) -> list[Recording]:
    """Divide a recording at pauses into parts of at most `window` frames, as far as they allow it.

    A part ends at the longest pause in the second half of a window; without one there, at the last
    one before, or else at the first one after the window.
    """
    pauses = () if audio.voice is None else audio.voice.pauses
    frames = [(round(at / SECONDS_PER_FRAME), seconds) for at, seconds in pauses]
    begin, parts = 0, list[Recording]()
    while audio.frames - begin > window:
        later = [(at, seconds) for at, seconds in frames if begin < at < audio.frames]
        near = [(seconds, at) for at, seconds in later if window // 2 <= at - begin <= window]
        before = [at for at, _ in later if at - begin < window // 2]
        end = max(near)[1] if near else before[-1] if before else later[0][0] if later else None
        if end is None:
            break
        parts.append(Recording(audio, begin, end))
        begin = end
    return [*parts, Recording(audio, begin)]


def read_spectrogram(
    source: AudioOrFeatures | Sequence[Any],
    log_mel: LogMel,
    *,
    strict: bool = False,
    pause: int | None = None,
    whole: bool = True,
    longest: float = math.inf,
    on_block: Callable[[float], None] | None = None,
) -> Spectrogram:
    """Read audio and compute its features, block by block; features are used as they are.

    Audio shorter than a window is padded with silence, as in Hugging Face.

    Args:
        strict: whether to refuse a file of which a part is missing or damaged
        pause: samples of silence that end speech, see `ending_pause`; None: silence is kept
        whole: whether to read more than the first window
        on_block: receives the seconds of each block before it is used; may raise an error

    Raises:
        AudioError: audio cannot be read, or features are not float32, not finite, or have another
            number of bins.
    """
    audio = source
    if not isinstance(audio, Spectrogram):
        voice = None if pause is None else _voice_filter(audio, log_mel, pause)
        audio = _read(audio, log_mel, longest, on_block, voice=voice, whole=whole)
    if strict and audio.defects:
        raise AudioError(audio.defects[0])
    return audio


def is_features(source: object) -> TypeGuard[NDArray[np.float32]]:
    """Return whether a source is features."""
    return isinstance(source, np.ndarray) and source.ndim == 2


def warn_of_defects(audio: Spectrogram) -> None:
    """Warn of what is missing or damaged in a file."""
    for defect in audio.defects:
        warnings.warn(defect, AudioWarning, stacklevel=2)


def _voice_filter(source: object, log_mel: LogMel, pause: int) -> VoiceFilter:
    if is_features(source):
        raise AudioError("vad: expected audio, found features")
    if log_mel.sampling_rate != RATE:
        raise AudioError(
            f"vad: expected a model of audio at {RATE} Hz, found {log_mel.sampling_rate}"
        )
    return VoiceFilter(pause)


def _read(
    source: Audio | NDArray[np.float32] | Sequence[Any],
    log_mel: LogMel,
    longest: float,
    on_block: Callable[[float], None] | None,
    *,
    voice: VoiceFilter | None,
    whole: bool,
) -> Spectrogram:
    if is_features(source):
        features = _checked(source, log_mel)
        return Spectrogram(features, features.shape[1], features.shape[1] * SECONDS_PER_FRAME)
    if isinstance(source, str) and not source:
        raise AudioError("expected the path of an audio file, found an empty text")
    rate, read, samples, defects = log_mel.sampling_rate, 0, 0, list[str]()

    def counted() -> Iterator[NDArray[np.float32]]:
        nonlocal read
        for block in read_blocks(source, rate, defects, longest=longest):  # type: ignore[arg-type]
            if on_block is not None:
                on_block(len(block) / rate)
            read += len(block)
            yield block

    def kept() -> Iterator[NDArray[np.float32]]:
        nonlocal samples
        for block in counted() if voice is None else voice.kept(counted()):
            samples += len(block)
            yield block

    blocks, first = kept(), [np.zeros(0, np.float32)]
    for block in blocks:
        first.append(block)
        if samples > log_mel.samples:
            break
    if samples > log_mel.samples and whole:
        features = log_mel.whole(chain(first, blocks))
        frames = features.shape[1]
    else:
        features = log_mel.chunk(np.concatenate(first))
        frames = min(log_mel.frames, samples // log_mel.hop)
    spans = None if voice is None else voice.voice(read)
    return Spectrogram(features, frames, samples / rate, tuple(defects), spans)


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
