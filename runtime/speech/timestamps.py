"""Which tokens may follow when Whisper generates timestamps (Radford et al., 2022, section 2.3).

The tokens from `timestamp_begin` to the end of the vocabulary are times, 0.02 s apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TimestampProcessor:
    """Hugging Face's WhisperTimeStampLogitsProcessor.

    - The first token is a timestamp.
    - Timestamps come in pairs, the end of a segment and the begin of the next; the first one, and
      one before the end token, stand alone.
    - They do not decrease, and no segment is empty.
    - If all timestamps together are more probable than any single other token, the next token is a
      timestamp.

    Attributes:
        end_token_id: text tokens lie below it
        no_timestamps_token_id: never chosen; the timestamps follow it
        max_initial_timestamp_index: the latest first timestamp, in steps of 0.02 s; None: any
    """

    end_token_id: int
    no_timestamps_token_id: int
    max_initial_timestamp_index: int | None = None

    @property
    def timestamp_begin(self) -> int:
        """The token of 0.00 s."""
        return self.no_timestamps_token_id + 1

    def apply(self, scores: NDArray[np.float32], generated: Sequence[int]) -> None:
        """Set scores [V] of tokens that may not follow to -inf.

        Args:
            scores: of the next token; tokens suppressed for other reasons are at -inf already,
                since the last condition compares the rest
            generated: the tokens generated so far, without the prompt
        """
        scores[self.no_timestamps_token_id] = -np.inf
        self._exclude(scores, generated)
        begin = self.timestamp_begin
        if _log_sum_exp(scores[begin:]) > scores[:begin].max():
            scores[:begin] = -np.inf

    def _exclude(self, row: NDArray[np.float32], tokens: Sequence[int]) -> None:
        begin = self.timestamp_begin
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
    """-inf for a row of -inf alone."""
    largest = scores.max()
    if largest == -np.inf:
        return -np.inf
    return float(np.log(np.exp(scores - largest).sum()) + largest)
