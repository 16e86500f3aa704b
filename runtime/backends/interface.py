"""The interface between backends and the decoding loop, and the errors of backends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError

from ..format.contract import Role


class BackendError(DragomanError):
    """A backend is missing, lacks its device, or cannot run the bundle or a batch."""

    status, code = 500, "backend_error"


class DeviceLostError(DragomanError):
    """A device failed, and this process cannot use it any more."""

    status, code = 500, "backend_error"


def no_attention(name: str) -> str:
    """Return the message for a bundle without the graph that shows attention."""
    return (
        f"{name}: expected a bundle with the graph that shows attention, found none: build one for "
        "target cpu or neutral with --with-attention"
    )


@dataclass(frozen=True)
class StepOutput:
    """The tokens that one decoding step selected, one for each row.

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
    """The model's prediction of the next token of every row.

    It is valid until the next call of its state. What is not read is not computed: on a GPU, logits
    stay on the device until they are read.
    """

    @property
    def choice(self) -> StepOutput:
        """The most probable token of each row, as the graph selects it; never a suppressed one."""

    def candidates(self, count: int) -> Candidates:
        """Return the `count` most probable tokens of each row, without suppressed tokens."""

    @property
    def logits(self) -> NDArray[np.float32]:
        """The logits [B, V], not to be changed."""

    @property
    def normalizers(self) -> NDArray[np.float32]:
        """The logarithm of the sum of exp(logits) over all tokens, [B].

        Logits minus normalizers are log-probabilities.
        """


class Limits(NamedTuple):
    """The limits of a backend on batches; None: only the model limits them.

    Attributes:
        rows: the most rows of a batch
        source: the most tokens of a source
        encoded: tokens of a batch up to which an encoder-only model is fastest; more are accepted
        source_multiple: sources are padded to a multiple of this, as far as the model has
            positions, which makes sums over them batch-invariant
    """

    rows: int | None = None
    source: int | None = None
    encoded: int | None = None
    source_multiple: int = 1


class DecodingState(Protocol):
    """A batch being decoded: encoded sources, caches and positions, held by the backend.

    It has `width` rows for each source: row r decodes from source r // width. Every row has its own
    position.
    """

    def step(self) -> StepOutput:
        """Decode one position of every row and feed the selected tokens back as the next input.

        The first call decodes the whole prompt.
        """

    def advance(self) -> Prediction:
        """Decode one position of every row without feeding tokens back.

        `feed` must follow, after `reorder` if rows change places.
        """

    def feed(self, tokens: NDArray[np.int64]) -> None:
        """Set the next step's input.

        Args:
            tokens: int64 [B]
        """

    def reorder(self, parents: NDArray[np.intp]) -> None:
        """Let row r continue what row parents[r] has decoded so far.

        Args:
            parents: [B], each a row of the same source. A row that another one continues stays
                where it is: parents[parents] equals parents.
        """

    def retire(self, sources: NDArray[np.intp]) -> None:
        """Stop decoding these sources.

        Their rows remain, and what steps return for them is undefined, until `keep` drops them or
        `join` puts other sources in their place.
        """

    def keep(self, sources: NDArray[np.intp]) -> None:
        """Drop all sources but these, which are renumbered from 0.

        Args:
            sources: sources[i] is i, or a source beyond the new number of sources, so that few move
        """

    def join(self, other: DecodingState, sources: NDArray[np.intp]) -> None:
        """Admit the sources of another batch, which is closed.

        Both batches have the same backend, width and capacity. Both must have read their prompts,
        or have prompts of one token.

        Args:
            sources: the number that each admitted source gets: of one that is retired, or the next
                free one
        """

    def close(self) -> None:
        """Release what the batch holds. No other method may be called afterwards."""


class Backend(Protocol):
    """The graphs of a bundle, ready to run. It may be called from several threads.

    Without a decoder, only `encode` may be called; without an encoder, everything else.
    """

    @property
    def limits(self) -> Limits:
        """The limits on batches."""

    def rows_that_fit(self, source: int) -> int | None:
        """Return how many rows with sources of this many tokens the device has memory for now.

        Returns:
            None if unknown
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
            source: tokens, int64 [N, S], or features, float32 [N, mel bins, frames]; no tokens for
                a decoder-only model
            source_mask: [N, S], True at tokens
            prompt: [N, P], the decoder's input before the first selected token, at least one token
            width: rows decoded from each source
            prompt_lengths: [N], how many tokens of each prompt, from the left, are read; None: all.
                Only decoder-only models take different ones.
        """

    def encode(
        self,
        source: NDArray[Any],
        source_mask: NDArray[np.bool_],
        token_type: NDArray[np.int64] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Return the encoder's outputs by tensor name.

        Args:
            token_type: [N, S], of encoder-only models; None: all 0, or the model has no token types
        """

    def attention(self, inputs: Mapping[Role, NDArray[Any]]) -> dict[Role, NDArray[np.float32]]:
        """Run the graph that shows attention and return its outputs.

        Raises:
            BackendError: the bundle does not have it, or the backend does not run it.
        """

    def score(
        self,
        source: NDArray[Any],
        source_mask: NDArray[np.bool_],
        target: NDArray[np.int64],
    ) -> NDArray[Any]:
        """Return the logits [B, T, V] that follow each prefix of a target [B, T] (teacher forcing).

        Source and mask are as for `start`.
        """

    def close(self) -> None:
        """Free what the backend holds. No other method may be called afterwards."""
