"""Figures that NVIDIA published, to be printed beside ours."""

from __future__ import annotations

import re
from typing import NamedTuple


class Published(NamedTuple):
    """New tokens per second on an H100: bart-large-cnn, bf16, decoded greedily; sources of 260 to
    440 tokens, 128 new tokens.

    Attributes:
        engines: with TensorRT-LLM's TensorRT engines, which have been removed since
        successor: with what replaced them, TensorRT-LLM's PyTorch backend
    """

    engines: int
    successor: int


SHAPE = "bart-large-cnn"
BART_LARGE_CNN = {
    32: Published(12_611, 10_662),
    64: Published(22_007, 16_209),
    128: Published(31_544, 23_518),
}
"""By batch size."""


def published(shape: str, batch_size: int) -> Published | None:
    """What was published for a shape, as `compare` records it, and a batch size; None: nothing."""
    known = re.search(rf" {SHAPE},", shape) is not None
    return BART_LARGE_CNN.get(batch_size) if known else None
