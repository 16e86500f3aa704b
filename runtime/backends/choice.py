"""The greedy choice where a graph's own, which is among all tokens, is not the one asked for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .interface import Step


def choose_without(logits: NDArray[np.float32], token_id: int) -> Step:
    """Of each row of logits [B, V] the best token but one; its log-probability is among all."""
    highest = logits.max(1, keepdims=True)
    normalizer = np.log(np.exp(logits - highest).sum(1)) + highest[:, 0]
    allowed = logits.copy()
    allowed[:, token_id] = -np.inf
    tokens = allowed.argmax(1)
    chosen = np.take_along_axis(allowed, tokens[:, None], 1)[:, 0]
    return Step(tokens, chosen - normalizer)
