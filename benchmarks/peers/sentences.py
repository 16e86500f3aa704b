"""What tools leave to their caller that run an encoder's graph alone: texts as its inputs, and
vectors from its hidden states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

Inputs = dict[str, NDArray[np.int64]]
"""[B, S] each, by the names of Hugging Face's exports."""

Tokenize = Callable[[Sequence[str]], Inputs]


def load_tokenizer(directory: Path) -> Tokenize:
    """The tokenizer of a checkpoint; texts are padded to the longest."""
    library = Tokenizer.from_file(str(directory / "tokenizer.json"))
    library.no_truncation()
    library.enable_padding()

    def tokenize(texts: Sequence[str]) -> Inputs:
        encodings = library.encode_batch(list(texts))
        return {
            "input_ids": np.array([e.ids for e in encodings], np.int64),
            "attention_mask": np.array([e.attention_mask for e in encodings], np.int64),
            "token_type_ids": np.array([e.type_ids for e in encodings], np.int64),
        }

    return tokenize


def mean_vectors(hidden: NDArray[np.float32], mask: NDArray[np.int64]) -> NDArray[np.float32]:
    """Unit vectors [B, D] in the direction of the mean hidden state of each text.

    Args:
        hidden: [B, S, D]
        mask: [B, S]
    """
    sums = (mask[:, None].astype(np.float32) @ hidden)[:, 0]
    vectors: NDArray[np.float32] = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    return vectors
