"""Whisper's timestamp tokens (Radford et al., 2022, section 2.3): decoding rules and segments.

The tokens from `timestamp_begin` to the end of the vocabulary are times, 0.02 s apart. Each window
of long audio begins where the last complete segment of the previous one ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..decoding.results import Quality, Word


@dataclass(frozen=True)
class TimestampProcessor:
    """Applies the rules of Hugging Face's `WhisperTimeStampLogitsProcessor`.

    - The first token is a timestamp.
    - Timestamps occur in pairs, the end of a segment and the start of the next, except for the
      first timestamp and a timestamp before the end token.
    - Timestamps do not decrease, no segment is empty, and none ends after the window.
    - If all timestamps together are more probable than any single other token, the next token is a
      timestamp.
    """

    end_token_id: int
    """End token, which follows the text tokens in the vocabulary."""
    no_timestamps_token_id: int
    """Token before the timestamps in the vocabulary; never selected."""
    max_initial_timestamp_index: int | None = None
    """Latest first timestamp, in steps of 0.02 s; None: any."""
    max_timestamp_index: int | None = None
    """Latest timestamp, the end of the window; None: any."""

    @property
    def timestamp_begin(self) -> int:
        """The timestamp token of 0.00 s."""
        return self.no_timestamps_token_id + 1

    def apply(self, scores: NDArray[np.float32], generated: Sequence[int]) -> None:
        """Set the scores [V] of tokens that may not follow to -inf.

        Args:
            scores: scores of the next token, of which suppressed ones are -inf already
        """
        scores[self.no_timestamps_token_id] = -np.inf
        self._exclude(scores, generated)
        begin = self.timestamp_begin
        if _log_sum_exp(scores[begin:]) > scores[:begin].max():
            scores[:begin] = -np.inf

    def _exclude(self, row: NDArray[np.float32], tokens: Sequence[int]) -> None:
        begin = self.timestamp_begin
        if self.max_timestamp_index is not None:
            row[begin + self.max_timestamp_index + 1 :] = -np.inf
        if not tokens:
            row[:begin] = -np.inf
            if self.max_initial_timestamp_index is not None:
                row[begin + self.max_initial_timestamp_index + 1 :] = -np.inf
            return
        is_open = False  # a segment has ended, and the next one has not begun
        if tokens[-1] >= begin:
            is_open = len(tokens) > 1 and tokens[-2] < begin
            if is_open:
                row[: self.end_token_id] = -np.inf
            else:
                row[begin:] = -np.inf
        latest = next((token for token in reversed(tokens) if token >= begin), None)
        if latest is not None:
            row[begin : latest if is_open else latest + 1] = -np.inf


def _log_sum_exp(scores: NDArray[np.float32]) -> float:
    largest = scores.max()
    if largest == -np.inf:
        return -np.inf
    return float(np.log(np.exp(scores - largest).sum()) + largest)


SECONDS_PER_TIMESTAMP = 0.02
SECONDS_PER_FRAME = 0.01
FRAMES_PER_TIMESTAMP = 2


@dataclass(frozen=True)
class TimedTokens:
    """A segment of a transcript."""

    start: float
    """Start in seconds from the beginning of the audio."""
    end: float
    """End in seconds from the beginning of the audio."""
    tokens: tuple[int, ...]
    """The segment's tokens, including timestamps."""
    words: tuple[Word, ...] | None = None
    """Its words with their times; None unless requested."""
    quality: Quality | None = None
    """That of its window; None unless windows are judged."""


def split_segments(
    tokens: Sequence[int], *, timestamp_begin: int, first_frame: int, frames: int
) -> tuple[list[TimedTokens], int]:
    """Split the tokens of a window into segments.

    The rules are those of `_retrieve_segment` in Hugging Face. If the last timestamps are a pair,
    the tokens after it are dropped, and the next window begins at that time, otherwise after this
    one.

    Args:
        first_frame: first frame of the window in the audio
        frames: number of the window's frames that are not padding

    Returns:
        the segments, and the frames to advance to the next window
    """
    offset = first_frame * SECONDS_PER_TIMESTAMP / FRAMES_PER_TIMESTAMP
    is_timestamp = [token >= timestamp_begin for token in tokens]
    bounds = [i for i, pair in enumerate(pairwise(is_timestamp), start=1) if all(pair)]
    if not bounds:
        end = offset + _last_time(tokens, timestamp_begin, frames) * SECONDS_PER_TIMESTAMP
        return [TimedTokens(offset, end, tuple(tokens))], frames

    def segment(begin: int, end: int, last_timestamp: int) -> TimedTokens:
        start, stop = (
            offset + (tokens[i] - timestamp_begin) * SECONDS_PER_TIMESTAMP
            for i in (begin, last_timestamp)
        )
        return TimedTokens(start, stop, tuple(tokens[begin:end]))

    segments = [segment(begin, end, end - 1) for begin, end in pairwise([0, *bounds])]
    if is_timestamp[-2:] == [False, True]:  # no speech after the last timestamp
        segments.append(segment(bounds[-1], len(tokens), len(tokens) - 1))
        return segments, frames
    # The last segment keeps both timestamps of the pair at its end.
    last = bounds[-2] if len(bounds) > 1 else 0
    segments[-1] = segment(last, bounds[-1] + 1, bounds[-1] - 1)
    step = (tokens[bounds[-1] - 1] - timestamp_begin) * FRAMES_PER_TIMESTAMP
    # A pair at 0.00 s, which TimestampProcessor prevents, must not stop progress.
    return segments, step or frames


def _last_time(tokens: Sequence[int], timestamp_begin: int, frames: int) -> int:
    """Return the last timestamp in steps of 0.02 s; the end of the window if it is 0.00 s."""
    last = next((token for token in reversed(tokens) if token >= timestamp_begin), timestamp_begin)
    if last != timestamp_begin:
        return last - timestamp_begin
    # In float32, as Hugging Face does: for some numbers of frames it is one less than half.
    steps = np.float32(frames) * np.float32(SECONDS_PER_FRAME) / np.float32(SECONDS_PER_TIMESTAMP)
    return int(steps)
