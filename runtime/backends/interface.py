"""The interface of backends to the decoding loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..format.contract import Role


@dataclass(frozen=True)
class Step:
    """The tokens that one decoding step chose, one for each row.

    Attributes:
        tokens: int64 [B]
        log_probabilities: float32 [B], of those tokens, in nats
    """

    tokens: NDArray[np.int64]
    log_probabilities: NDArray[np.float32]


class Candidates(NamedTuple):
    """The most probable next tokens of each row, best first.

    Attributes:
        tokens: int64 [B, K]
        log_probabilities: float32 [B, K], in nats, among all tokens of the vocabulary
    """

    tokens: NDArray[np.int64]
    log_probabilities: NDArray[np.float32]


class Prediction(Protocol):
    """What the model says of the next token of every row. Valid until the next call of its state,
    and computed only as far as it is asked for: on a GPU, logits stay on the device until then.
    """

    @property
    def choice(self) -> Step:
        """The graph's own choice, suppressed tokens excluded."""

    def candidates(self, count: int) -> Candidates:
        """The `count` best tokens of each row, suppressed tokens excluded."""

    @property
    def logits(self) -> NDArray[np.float32]:
        """[B, V], not to be changed."""

    @property
    def normalizers(self) -> NDArray[np.float32]:
        """[B], the logarithm of the sum of exp(logits) over all tokens: logits less this are
        log-probabilities.
        """


class Limits(NamedTuple):
    """What a backend asks of batches; None: only the model limits them.

    Attributes:
        rows: of a batch
        source: tokens of a source
        encoded: tokens of a batch of which an encoder alone makes all that it makes; more are
            accepted, but not faster
        source_multiple: sources are padded to a multiple of so many tokens, as far as the model has
            positions, so that sums over them have the same order in any company
    """

    rows: int | None = None
    source: int | None = None
    encoded: int | None = None
    source_multiple: int = 1


class DecodingState(Protocol):
    """A batch being decoded: encoded sources, caches and positions, held by the backend.

    It has `width` rows for each source: row r decodes from source r // width. Every row has a
    position of its own.
    """

    def step(self) -> Step:
        """Decode one position of every row, the first time the whole prompt, and feed the chosen
        tokens back as the next step's input.
        """

    def advance(self) -> Prediction:
        """The same, but nothing is fed back: `feed` must follow, after `reorder` if rows change
        places.
        """

    def feed(self, tokens: NDArray[np.int64]) -> None:
        """Set the next step's input.

        Args:
            tokens: int64 [B]
        """

    def reorder(self, parents: NDArray[np.intp]) -> None:
        """Row r continues what row parents[r] has decoded so far.

        Args:
            parents: [B], of the same source each. A row that another one continues stays where it
                is: parents[parents] equals parents.
        """

    def retire(self, sources: NDArray[np.intp]) -> None:
        """Decode these sources no longer. Their rows remain, and what steps return for them means
        nothing, until `keep` drops them or `join` puts others in their place.
        """

    def keep(self, sources: NDArray[np.intp]) -> None:
        """Drop all sources but these, which are renumbered from 0.

        Args:
            sources: sources[i] is i, or one that is beyond the new number of sources: few move
        """

    def join(self, other: DecodingState, sources: NDArray[np.intp]) -> None:
        """Take over the sources of another batch of the same backend, width and capacity, which is
        closed. Both must have taken their prompts, or have prompts of one token.

        Args:
            sources: the number that each of them gets here: of one that is retired, or the next
                one that is free
        """

    def close(self) -> None:
        """Release what the batch holds. No other method may be called afterwards."""


class Backend(Protocol):
    """The graphs of a bundle, ready to run. Safe to call from several threads. Without a decoder,
    only `encode` may be called; without an encoder, anything else.
    """

    @property
    def limits(self) -> Limits: ...

    def rows_that_fit(self, source: int) -> int | None:
        """How many rows the device has memory for at present, with sources of this many tokens;
        None: unknown.
        """

    def start(
        self,
        source: NDArray[Any],
        source_mask: NDArray[np.bool_],
        prompt: NDArray[np.int64],
        capacity: int,
        width: int = 1,
        prompt_lengths: NDArray[np.int64] | None = None,
    ) -> DecodingState:
        """Encode a batch and make room for `capacity` target positions in each row.

        Args:
            source: tokens, int64 [N, S], or features, float32 [N, mel bins, frames]; for a decoder
                alone, no tokens
            source_mask: [N, S], True at tokens
            prompt: [N, P], the decoder's input before the first choice, at least one token
            width: rows decoded from each source
            prompt_lengths: [N], how many tokens of each prompt, from the left, are read; None: all.
                Only a decoder alone takes different ones.
        """

    def encode(
        self,
        source: NDArray[Any],
        source_mask: NDArray[np.bool_],
        token_type: NDArray[np.int64] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """The encoder's outputs by tensor name: what an encoder alone is for.

        Args:
            token_type: [N, S]; None: all 0, or the model tells no segments apart
        """

    def attention(self, inputs: Mapping[Role, NDArray[Any]]) -> dict[Role, NDArray[np.float32]]:
        """What the graph that shows attention returns.

        Raises:
            BackendError: the bundle does not have it, or the backend does not run it.
        """

    def score(
        self,
        source: NDArray[Any],
        source_mask: NDArray[np.bool_],
        target: NDArray[np.int64],
    ) -> NDArray[Any]:
        """Teacher forcing: logits [B, T, V] that follow each prefix of target [B, T]; source and
        mask as for `start`.
        """

    def close(self) -> None:
        """Free what the backend holds. No other method may be called afterwards."""
