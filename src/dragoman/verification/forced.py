"""Oracle and bundle along the oracle's own outputs: one teacher-forced pass of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.reference_model import AutoregressiveModel, LanguageModel, NoMemory
from dragoman.reference_model.layers import KeysValues
from dragoman.runtime import Model
from dragoman.runtime.decoding.batching import Encodable, as_batch, pad
from dragoman.runtime.decoding.options import DEFAULT_BATCH_SIZE
from dragoman.runtime.format.model_spec import ModelSpec
from dragoman.runtime.scoring.batches import forcing_batches

from .oracle import for_torch

COMPARED_SOURCES = 64
"""Sources compared number by number, spread evenly over all."""


@dataclass(frozen=True)
class ForcedBatch:
    """What both computed for a batch of sources.

    Attributes:
        source: token ids [B, S], or features [B, mel bins, frames]
        source_mask: [B, S], True at tokens
        read: what the decoders were given, [B, T]
        read_mask: [B, T], True at tokens
        chosen_mask: [B, T], True where the token that follows is chosen by the model: not within
            the prompt, and not a forced first token
        cross: of the oracle: keys and values of each decoder layer, [B, H, S, Dh]
        logits: of the oracle, [B, T, V]
        encoded: what the bundle's encoder computed, by name
        scored: the bundle's logits, [B, T, V]
    """

    source: NDArray[Any]
    source_mask: NDArray[np.bool_]
    read: NDArray[np.int64]
    read_mask: NDArray[np.bool_]
    chosen_mask: NDArray[np.bool_]
    cross: Sequence[KeysValues]
    logits: NDArray[np.float32]
    encoded: dict[str, NDArray[Any]]
    scored: NDArray[Any]


def forced_batches(
    model: Model,
    oracle: AutoregressiveModel,
    sources: Sequence[Encodable],
    outputs: list[list[int]],
) -> Iterator[ForcedBatch]:
    """
    Args:
        outputs: of the oracle, which both decoders are forced to follow
    """
    spec, generation = model.manifest.model, oracle.generation
    count = min(COMPARED_SOURCES, len(sources))
    compared = np.linspace(0, len(sources) - 1, count).astype(int).tolist()
    prompts = {i: oracle.prompt(for_torch(sources[i])) for i in compared}
    forced = generation.forced_first_token_id is not None
    reads = {i: [*prompts[i], *outputs[i][:-1]] for i in compared}
    lengths = [(len(sources[i]), len(reads[i])) for i in compared]
    for batch in oracle_batches(spec, lengths):
        rows = [compared[i] for i in batch]
        encoded = [sources[i] if spec.has_encoder else [] for i in rows]
        source, source_mask = as_batch(encoded, spec)
        read, read_mask = pad([reads[i] for i in rows], spec.pad_token_id)
        cross, logits = oracle_pass(oracle, source, source_mask, read)
        given = np.array([len(prompts[i]) + forced for i in rows])
        chosen_mask = read_mask & (np.arange(read.shape[1]) >= given[:, None] - 1)
        yield ForcedBatch(
            source,
            source_mask,
            read,
            read_mask,
            chosen_mask,
            cross,
            logits,
            model.backend.encode(source, source_mask) if spec.has_encoder else {},
            model.backend.score(source, source_mask, read),
        )


def oracle_batches(spec: ModelSpec, lengths: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """As `forcing_batches`; windows of audio one by one, since the oracle's attention holds all
    scores of all heads.
    """
    return forcing_batches(spec, lengths, 1 if spec.takes_audio else DEFAULT_BATCH_SIZE)


@torch.inference_mode()
def oracle_pass(
    oracle: AutoregressiveModel,
    source: NDArray[Any],
    source_mask: NDArray[np.bool_],
    read: NDArray[np.int64],
) -> tuple[list[KeysValues], NDArray[np.float32]]:
    """Keys and values of cross-attention, if there is any, and logits [B, T, V]."""
    if isinstance(oracle, LanguageModel):
        return [], oracle(torch.from_numpy(read)).numpy()
    mask = torch.from_numpy(source_mask)
    cross = oracle.encode(torch.from_numpy(source), mask)
    start = torch.zeros(len(read), dtype=torch.long)
    logits = oracle.decode(torch.from_numpy(read), start, mask, cross, NoMemory())
    return cross, logits.numpy()
