"""What the decoding loop asks of a backend. Nothing here, or above it, knows which one it is."""

from __future__ import annotations

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
        """Decode one position and feed the chosen tokens back as the next step's input."""

    def step_without(self, token_id: int) -> Step:
        """The same, choosing among all tokens but one."""

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
        self, source: NDArray[np.int64], source_mask: NDArray[np.bool_], capacity: int
    ) -> DecodingState:
        """Encode a batch and make room for `capacity` target positions in each row.

        Args:
            source: [B, S]
            source_mask: [B, S], True at tokens
        """

    def encode(
        self, source: NDArray[np.int64], source_mask: NDArray[np.bool_]
    ) -> dict[str, NDArray[Any]]:
        """The encoder's outputs by tensor name, as numbers: to check them."""

    def score(
        self,
        source: NDArray[np.int64],
        source_mask: NDArray[np.bool_],
        target: NDArray[np.int64],
    ) -> NDArray[Any]:
        """Teacher forcing: logits [B, T, V] that follow each prefix of target [B, T]."""

    def close(self) -> None:
        """Free what the backend holds. Nothing else may be asked of it afterwards."""
