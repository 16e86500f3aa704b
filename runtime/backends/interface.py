"""The interface between backends and the decoding loop, and the errors of backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError

from ..format.contract import Role, Slot


class BackendError(DragomanError):
    """A backend or its device is missing, or it cannot run the bundle or a batch."""

    status, code = 500, "backend_error"


class DeviceLostError(DragomanError):
    """A device failed, and this process cannot use it any more."""

    status, code = 503, "backend_error"


class ClosedModelError(DragomanError):
    """A model was used after `Model.close`."""

    status, code = 503, "unavailable"

    def __init__(self, message: str = "the model is closed: load it again") -> None:
        super().__init__(message)


def one_line(error: Exception) -> str:
    """Return the message of a library's error in one line."""
    return " ".join(str(error).split())


def no_attention(name: str) -> str:
    """Return the message for a bundle without the attention graph."""
    return (
        f"{name}: expected a bundle with the graph that shows attention, found none: build one for "
        "target cpu or neutral with --with-attention"
    )


@dataclass(frozen=True)
class StepOutput:
    """The tokens that one decoding step selected, one for each row."""

    tokens: NDArray[np.int64]
    """Int64 [B]."""
    log_probabilities: NDArray[np.float32]
    """Log-probabilities of the tokens in nats, float32 [B]."""


class Candidates(NamedTuple):
    """The most probable next tokens of each row, best first."""

    tokens: NDArray[np.int64]
    """Int64 [B, K]."""
    log_probabilities: NDArray[np.float32]
    """Float32 [B, K], in nats, over the whole vocabulary."""


class Prediction(Protocol):
    """The prediction of the next token of every row, valid until the next call of its state.

    Values are computed when they are read; on a GPU, logits stay on the device until then.
    """

    @property
    def choice(self) -> StepOutput:
        """The most probable unsuppressed token of each row, as the graph selects it."""

    def candidates(self, count: int) -> Candidates:
        """Return the `count` most probable unsuppressed tokens of each row."""

    @property
    def logits(self) -> NDArray[np.float32]:
        """The logits [B, V], read-only."""

    @property
    def normalizers(self) -> NDArray[np.float32]:
        """The logarithm of the sum of exp(logits), [B]; logits minus it are log-probabilities."""


class Limits(NamedTuple):
    """The limits of a backend on batches; None: only the model limits them."""

    rows: int | None = None
    source: int | None = None
    encoded: int | None = None
    """Number of tokens up to which batches of an encoder-only model are fastest; larger batches are
    accepted."""
    source_multiple: int = 1
    """Multiple for padding sources, limited to the model's positions; it makes sums over source
    positions batch-invariant."""


class Steps(NamedTuple):
    """The number of decoding steps that ran as CUDA graphs, and of those that ran directly."""

    captured: int = 0
    direct: int = 0


NO_SHORTLIST = (
    "shortlist: expected the backend onnxruntime, which runs the graphs of a shortlist on the "
    "processor; shortlist=False (--no-shortlist) decodes with the whole vocabulary"
)

ONLY_ON_THE_PROCESSOR = (
    "times of words: expected the backend onnxruntime, which runs the alignment graph on the "
    "processor"
)


Encoded = Mapping[str, NDArray[Any]]
"""What `Backend.encode` returned for a batch: the encoder's outputs by tensor name."""


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

        `feed` must follow, after `reorder` if rows continue other rows.
        """

    def feed(self, tokens: NDArray[np.int64]) -> None:
        """Set the next step's input, int64 [B]."""

    def reorder(self, parents: NDArray[np.intp]) -> None:
        """Let row r continue the output of row parents[r], a row of the same source.

        The parent of another row continues itself: parents[parents] equals parents.
        """

    def retire(self, sources: NDArray[np.intp]) -> None:
        """Stop decoding these sources.

        Their rows remain, with undefined results, until `keep` drops them or `join` replaces them.
        """

    def keep(self, sources: NDArray[np.intp]) -> None:
        """Drop all sources but these, which are renumbered from 0.

        sources[i] is i, or a source beyond the new number of sources, so that few move.
        """

    def join(self, other: DecodingState, sources: NDArray[np.intp]) -> None:
        """Admit the sources of another batch and close that batch.

        Both batches have the same backend, width and capacity, and both a shortlist or neither.
        Both must have read their prompts, or have prompts of one token.

        Args:
            sources: new number of each admitted source: that of a retired source, or the next free
                one
        """

    def encoded_source(self, source: int) -> dict[Slot, NDArray[Any]] | None:
        """Return a copy of what the decoder reads of a source [1, ...], such as for `align`.

        None on a GPU, where it is not copied to the host.
        """

    def close(self) -> None:
        """Release the batch. No other method may be called afterwards."""


class Backend(Protocol):
    """The graphs of a bundle, ready to run. It may be called from several threads.

    Only `encode` may be called without a decoder, and all methods but `encode` without an encoder.
    """

    @property
    def limits(self) -> Limits:
        """The limits on batches."""

    @property
    def steps(self) -> Steps | None:
        """The number of decoding steps so far; None on the processor."""

    def rows_that_fit(self, source: int, capacity: int, share: float = 1.0) -> int | None:
        """Return the number of rows to decode at a time, by free memory; None on the processor."""

    def start(
        self,
        source: NDArray[Any] | Encoded,
        source_mask: NDArray[np.bool_],
        prompt: NDArray[np.int64],
        capacity: int,
        width: int = 1,
        prompt_lengths: NDArray[np.int64] | None = None,
        allowed: Sequence[NDArray[np.int64]] | None = None,
    ) -> DecodingState:
        """Encode a batch and allocate `capacity` target positions for each row.

        Args:
            source: tokens, int64 [N, S], or features, float32 [N, mel bins, frames]; S is 0 for a
                decoder-only model. Or what `encode` returned for them.
            source_mask: [N, S], True at tokens
            prompt: decoder input before the first selected token, [N, P] with P at least 1
            width: number of rows for each source
            prompt_lengths: number of tokens to read of each prompt, from the left, [N]; None: all.
                Different lengths are allowed only for decoder-only models.
            allowed: the tokens that each source allows, ascending and without repetitions; None:
                all. For a bundle with a shortlist only.
        """

    def encode(
        self,
        source: NDArray[Any],
        source_mask: NDArray[np.bool_],
        token_type: NDArray[np.int64] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Return the encoder's outputs by tensor name.

        Args:
            token_type: for encoder-only models, [N, S]; None: all 0 or no token types
        """

    def attention(self, inputs: Mapping[Role, NDArray[Any]]) -> dict[Role, NDArray[np.float32]]:
        """Run the attention graph, or raise a BackendError if there is none to run."""

    def check_alignment(self) -> None:
        """Raise a BackendError if the backend does not run a speech model's alignment graph."""

    def align(
        self, encoded: Mapping[Slot, NDArray[Any]], token: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """Run the alignment graph on one source.

        Args:
            encoded: from `DecodingState.encoded_source`
            token: the decoder's input, [1, T]

        Returns:
            logits [1, T, V] and cross-attention [1, layers, heads, T, S] of the layers that align
        """

    def score(
        self,
        source: NDArray[Any] | Encoded,
        source_mask: NDArray[np.bool_],
        target: NDArray[np.int64],
        positions: NDArray[np.int64] | None = None,
    ) -> NDArray[Any]:
        """Return the logits [B, R, V] that follow prefixes of a target [B, T] (teacher forcing).

        Source and mask are as for `start`.

        Args:
            positions: positions of the prefixes' last tokens, int64 [R], ascending; None: all
        """

    def close(self) -> None:
        """Free the backend's resources, those of running batches when they end.

        Later calls raise a `ClosedModelError`, except this one.
        """
