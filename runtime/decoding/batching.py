"""Groups inputs into batches, and converts batches to arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..backends.interface import BackendError
from ..backends.rows import padded_length
from ..format.model_spec import ModelSpec

Input = TypeVar("Input")
Outcome = TypeVar("Outcome")

MAX_LOGITS = 2**26
"""Maximum number of logits in a batch with logits for every token: 256 MiB of float32. An input
with more is computed in a batch of its own."""


def batches(
    lengths: Sequence[int], *, max_batch_size: int, max_batch_tokens: int
) -> Iterator[list[int]]:
    """Group inputs of similar length, longest first.

    With the longest first, a batch that does not fit into memory fails immediately.

    Args:
        lengths: source length of each input
        max_batch_size: maximum number of inputs in a batch
        max_batch_tokens: maximum number of source tokens in a batch, including padding; a longer
            input forms its own batch

    Yields:
        indices into `lengths`, each exactly once
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    batch: list[int] = []
    for index in order:
        widest = lengths[batch[0]] if batch else lengths[index]
        if batch and (len(batch) == max_batch_size or widest * (len(batch) + 1) > max_batch_tokens):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def run_or_split(
    run: Callable[[list[Input]], list[Outcome]],
    inputs: list[Input],
    failed: Callable[[str], Outcome],
) -> list[Outcome]:
    """Run a batch; if the backend fails, for example out of memory, run its halves in turn.

    Args:
        failed: returns the outcome of an input that fails in its own batch, given the reason
    """
    try:
        return run(inputs)
    except (BackendError, MemoryError) as error:
        if len(inputs) == 1:
            return [failed(str(error) or "not enough memory")]
    half = len(inputs) // 2
    return [
        *run_or_split(run, inputs[:half], failed),
        *run_or_split(run, inputs[half:], failed),
    ]


EncoderInput = list[int] | NDArray[np.float32]
"""One source for the encoder: token ids, or features of audio [mel bins, frames]."""


def as_batch(
    sources: Sequence[EncoderInput], model: ModelSpec, multiple: int = 1
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return a batch of sources and its mask, bool [B, S], True at tokens.

    The batch is int64 [B, S] for token ids, or float32 [B, mel bins, frames] for audio features,
    where the mask covers all frames.

    Args:
        multiple: see `Limits.source_multiple`
    """
    if model.takes_audio:
        mask = np.ones((len(sources), model.max_source_positions), np.bool_)
        return np.stack([np.asarray(source, np.float32) for source in sources]), mask
    longest = max(map(len, sources))
    length = padded_length(longest, multiple, model.max_source_positions)
    return pad([list(map(int, source)) for source in sources], model.pad_token_id, length)


def pad(
    sources: Sequence[Sequence[int]], pad_token_id: int, length: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Pad token ids to int64 [B, S]; also return the mask, bool [B, S], True at tokens.

    Args:
        length: minimum S
    """
    shape = (len(sources), max(length, *(len(source) for source in sources)))
    tokens = np.full(shape, pad_token_id, np.int64)
    mask = np.zeros(shape, np.bool_)
    for row, source in enumerate(sources):
        tokens[row, : len(source)] = source
        mask[row, : len(source)] = True
    return tokens, mask
