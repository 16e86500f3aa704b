"""One pass of encoder and decoder over sources and given targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backends.errors import BackendError
from ..backends.interface import Backend
from ..decoding.batching import Encodable, as_batch, pad
from ..format.model_spec import ModelSpec


@dataclass(frozen=True)
class ForcedPair:
    """A source and a target, ready for the graphs.

    Attributes:
        source: token ids, or features of audio [mel bins, frames]
        given: what the decoder reads before the target and is not scored: the start token, the
            prompt, and a first token that the model's settings force. At least one.
        target: the tokens to score, at least one
    """

    source: Encodable
    given: tuple[int, ...]
    target: tuple[int, ...]

    @property
    def read(self) -> list[int]:
        """What the decoder reads: everything but the last token."""
        return [*self.given, *self.target[:-1]]


def token_log_probabilities(
    backend: Backend, model: ModelSpec, pairs: Sequence[ForcedPair]
) -> list[NDArray[np.float64]]:
    """The log-probability of each token of each target, [target] in nats, by the model's own
    softmax over the whole vocabulary: no token is suppressed.

    Raises:
        BackendError: the graphs fail, as for lack of memory, or a value is not a finite number.
    """
    sources = [pair.source for pair in pairs]
    source, source_mask = as_batch(sources, model, backend.limits.source_multiple)
    read, _ = pad([pair.read for pair in pairs], model.pad_token_id)
    logits = backend.score(source, source_mask, read)
    scored = []
    for row, pair in zip(logits, pairs, strict=True):
        first = len(pair.given) - 1
        values = log_probabilities_of(row[first : first + len(pair.target)], pair.target)
        if not np.isfinite(values).all():
            raise BackendError("the model's logits are not finite numbers")
        scored.append(values)
    return scored


def log_probabilities_of(logits: NDArray[Any], tokens: Sequence[int]) -> NDArray[np.float64]:
    """The log-probabilities [T] of tokens [T] by logits [T, V] in any type."""
    wide = logits.astype(np.float32, copy=False)
    with np.errstate(invalid="ignore"):  # infinite logits give NaN
        shifted = wide - wide.max(axis=1, keepdims=True)
    normalizer = np.log(np.exp(shifted).sum(axis=1, dtype=np.float64))
    chosen = shifted[np.arange(len(tokens)), list(tokens)]
    return np.asarray(chosen - normalizer, np.float64)
