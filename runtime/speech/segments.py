"""From the tokens of a window, timestamps included, to segments; and where the next begins.

A long signal is decoded window by window. Each begins where the last complete segment of the
previous one ends, so that only the incomplete segment is decoded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

SECONDS_PER_TIMESTAMP = 0.02
SECONDS_PER_FRAME = 0.01
FRAMES_PER_TIMESTAMP = 2


@dataclass(frozen=True)
class TimedTokens:
    """What is said between two times.

    Attributes:
        start: seconds from the beginning of the signal
        end: likewise
        tokens: the segment's tokens, its timestamps included
    """

    start: float
    end: float
    tokens: tuple[int, ...]


def split_segments(
    tokens: Sequence[int], *, timestamp_begin: int, first_frame: int, frames: int
) -> tuple[list[TimedTokens], int]:
    """The segments of a window, and by how many frames to move on to the next window.

    As `_retrieve_segment` in Hugging Face's long-form `generate`. If the last timestamps are a
    pair, what follows it is dropped, and the next window begins at that time; otherwise the next
    window begins after this one.

    Args:
        tokens: generated for the window, without prompt and end token
        timestamp_begin: the token of 0.00 s
        first_frame: where in the signal the window begins
        frames: how many of the window's frames belong to the signal, not to padding
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
    if is_timestamp[-2:] == [False, True]:  # nothing is said after the last timestamp
        segments.append(segment(bounds[-1], len(tokens), len(tokens) - 1))
        return segments, frames
    # The last segment keeps both timestamps of the pair at its end.
    last = bounds[-2] if len(bounds) > 1 else 0
    segments[-1] = segment(last, bounds[-1] + 1, bounds[-1] - 1)
    step = (tokens[bounds[-1] - 1] - timestamp_begin) * FRAMES_PER_TIMESTAMP
    # A pair at 0.00 s, which TimestampProcessor prevents, must not stop progress.
    return segments, step or frames


def _last_time(tokens: Sequence[int], timestamp_begin: int, frames: int) -> int:
    """The last timestamp, in steps of 0.02 s, unless it is 0.00 s; else the window's end."""
    last = next((token for token in reversed(tokens) if token >= timestamp_begin), timestamp_begin)
    if last != timestamp_begin:
        return last - timestamp_begin
    # In float32, as Hugging Face does: for some numbers of frames it is one less than half.
    steps = np.float32(frames) * np.float32(SECONDS_PER_FRAME) / np.float32(SECONDS_PER_TIMESTAMP)
    return int(steps)
