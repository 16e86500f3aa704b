"""The interface of backends to the decoding loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Step:
    """The tokens that one decoding step chose, one for each row.

    Attributes:
        tokens: int64 [B]
        log_probabilities: float32 [B], of those tokens, in nats
    """

    tokens: NDArray[np.int64]
    log_probabilities: NDArray[np.float32]


class Limits(NamedTuple):
    """The largest batches that a backend accepts; None: only the model limits them.

    Attributes:
        rows: of a batch
        source: tokens of a source
    """

    rows: int | None = None
    source: int | None = None


class DecodingState(Protocol):
    """A batch being decoded: encoded sources, caches and positions, held by the backend."""

    def step(self) -> Step:
        """Decode one position, the first time the whole prompt, and feed the chosen tokens back as
        the next step's input."""

    def step_choosing(self, choose: Callable[[NDArray[np.float32]], Step]) -> Step:
        """The same, with the caller's choice in place of the graph's.

        Args:
            choose: gets the logits [B, V] of all rows, and must not change them
        """

    def keep(self, rows: NDArray[np.intp]) -> None:
        """Drop all rows but these (strictly ascending indices), which are renumbered from 0."""

    def close(self) -> None:
        """Release what the batch holds. No other method may be called afterwards."""


class Backend(Protocol):
    """An encoder and a decoder step, ready to run. Safe to call from several threads."""

    @property
    def limits(self) -> Limits: ...

    def rows_that_fit(self, source: int) -> int | None:
        """How many rows the device has memory for at present, with sources of this many tokens;
        None: unknown."""

    def start(
        self,
        source: NDArray[Any],
        source_mask: NDArray[np.bool_],
        prompt: NDArray[np.int64],
        capacity: int,
    ) -> DecodingState:
        """Encode a batch and make room for `capacity` target positions in each row.

        Args:
            source: tokens, int64 [B, S], or features, float32 [B, mel bins, frames]
            source_mask: [B, S], True at tokens
            prompt: [B, P], the decoder's input before the first choice, at least one token
        """

    def encode(
        self, source: NDArray[Any], source_mask: NDArray[np.bool_]
    ) -> dict[str, NDArray[Any]]:
        """The encoder's outputs by tensor name, for checks."""

    def score(
        self,
        source: NDArray[Any],
        source_mask: NDArray[np.bool_],
        target: NDArray[np.int64],
    ) -> NDArray[Any]:
        """Teacher forcing: logits [B, T, V] that follow each prefix of target [B, T]."""

    def close(self) -> None:
        """Free what the backend holds. No other method may be called afterwards."""
