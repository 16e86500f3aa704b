"""What the decoding loop asks of a backend. Nothing here, or above it, knows which one it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Step:
    """What one decoding step chose for each row.

    Attributes:
        tokens: int64 [B]
        log_probabilities: float32 [B], of those tokens, in nats
    """

    tokens: NDArray[np.int64]
    log_probabilities: NDArray[np.float32]


class Limits(NamedTuple):
    """What a backend takes at most; None: what the model does.

    Attributes:
        rows: of a batch
        source: tokens
    """

    rows: int | None = None
    source: int | None = None


class DecodingState(Protocol):
    """A batch being decoded: encoded sources, caches and positions, owned by the backend."""

    def step(self) -> Step:
        """Decode one position, the first time the prompt's, and feed the chosen tokens back as the
        next step's input."""

    def step_choosing(self, choose: Callable[[NDArray[np.float32]], Step]) -> Step:
        """The same, with a choice of the caller's instead of the graph's.

        Args:
            choose: takes the logits [B, V] of all rows, which it leaves as they are
        """

    def keep(self, rows: NDArray[np.intp]) -> None:
        """Drop all rows but these (strictly ascending indices); they are numbered anew."""

    def close(self) -> None:
        """Give back what the batch holds. Nothing else may be asked of it afterwards."""


class Backend(Protocol):
    """An encoder and a decoder step, ready to run. Safe to call from several threads."""

    @property
    def limits(self) -> Limits: ...

    def rows_that_fit(self, source: int) -> int | None:
        """Rows of a batch that the device has memory for now, sources of so many tokens; None: it
        cannot be told."""

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
            prompt: [B, P], what the decoder is given before the first choice, at least one token
        """

    def encode(
        self, source: NDArray[Any], source_mask: NDArray[np.bool_]
    ) -> dict[str, NDArray[Any]]:
        """The encoder's outputs by tensor name, as numbers: to check them."""

    def score(
        self,
        source: NDArray[Any],
        source_mask: NDArray[np.bool_],
        target: NDArray[np.int64],
    ) -> NDArray[Any]:
        """Teacher forcing: logits [B, T, V] that follow each prefix of target [B, T]."""

    def close(self) -> None:
        """Free what the backend holds. Nothing else may be asked of it afterwards."""
