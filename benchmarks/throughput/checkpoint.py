"""A checkpoint of random weights whose outputs end: each after another number of tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from dragoman.export.families.bart import LOGITS_BIAS
from dragoman.export.families.hugging_face import load_hugging_face
from dragoman.reference_model import Transformer, greedy_cached, pad

from ..models.random_checkpoint import write_random_text_model

PROBES, STEPS = 16, 48
"""Sources, and tokens of each, whose largest logits are looked at."""


def write_ending_text_model(
    shape: str, directory: Path, *, vocab_size: int, mean_length: int
) -> None:
    """Write a checkpoint of a text model, the same for the same arguments.

    The end token's logit, which does not depend on anything, gets a bias with which it is the
    largest at one step in `mean_length`. So lengths are spread as those of a geometric distribution
    are, and all tools, which compute nearly the same logits, end after nearly as many tokens.

    Args:
        shape: a key of `models.shapes.SHAPES`
        mean_length: of outputs, in tokens
    """
    write_random_text_model(shape, directory, vocab_size=vocab_size)
    model = load_hugging_face(directory)
    largest = _largest_logits(model, vocab_size)
    file = directory / "model.safetensors"
    weights = load_file(file)
    weights[LOGITS_BIAS] = weights[LOGITS_BIAS].clone()
    end = model.config.end_token_id
    weights[LOGITS_BIAS][0, end] = float(np.quantile(largest, 1 / mean_length))
    save_file(weights, file, metadata={"format": "pt"})


def _largest_logits(model: Transformer, vocab_size: int) -> NDArray[np.float32]:
    """Of each step of some outputs."""
    generator = np.random.default_rng(0)
    sources = generator.integers(1, vocab_size - 1, (PROBES, 32)).tolist()
    with torch.inference_mode():
        tokens = greedy_cached(model, sources, STEPS)
        source, mask = pad(sources, model.config.pad_token_id)
        read = torch.tensor([[model.config.start_token_id, *row[:-1]] for row in tokens])
        return np.asarray(model(source, mask, read).amax(-1).flatten().numpy())
