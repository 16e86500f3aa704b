"""The oracle's outputs: the reference model in fp32, decoding greedily without a cache."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import torch

from dragoman.reference_model import AutoregressiveModel, Source, greedy_uncached
from dragoman.runtime.decoding.batching import Encodable, batches
from dragoman.runtime.format.manifest import Manifest

BATCH_SIZE = 64
BATCH_TOKENS = 4096


def oracle_for(
    reference: AutoregressiveModel, manifest: Manifest, target_language: str | None = None
) -> tuple[AutoregressiveModel, str | None]:
    """The reference model set to write one language, and that language: the one that is named, else
    the bundle's default, else the first it has. None for a model without languages.

    Raises:
        LanguageError: the model does not have the language.
    """
    languages = manifest.languages
    if languages is None:
        return reference, None
    code = target_language or languages.default_target or min(languages.tokens)
    start, settings = languages.start_of(code, manifest.model.start_token_id, manifest.generation)
    oracle = copy.copy(reference)
    oracle.config = reference.config.replace(start_token_id=start)
    oracle.generation = dataclasses.replace(
        reference.generation, forced_first_token_id=settings.forced_first_token_id
    )
    return oracle, code


def oracle_outputs(
    oracle: AutoregressiveModel,
    sources: Sequence[Encodable],
    limit: int,
    advance: Callable[[int], None] = lambda count: None,
) -> list[list[int]]:
    """Greedy output of each source, including the end token if it is reached.

    Args:
        limit: the most new tokens
        advance: called with the number of sources just done
    """
    outputs: dict[int, list[int]] = {}
    for batch in source_batches(sources):
        decoded = greedy_uncached(oracle, [for_torch(sources[i]) for i in batch], limit)
        outputs.update(zip(batch, decoded, strict=True))
        advance(len(batch))
    return [outputs[i] for i in range(len(sources))]


def source_batches(sources: Sequence[Encodable]) -> list[list[int]]:
    """Indices of sources of similar length."""
    lengths = [
        source.shape[-1] if isinstance(source, np.ndarray) else len(source) for source in sources
    ]
    return list(batches(lengths, max_batch_size=BATCH_SIZE, max_batch_tokens=BATCH_TOKENS))


def for_torch(source: Encodable) -> Source:
    return torch.from_numpy(source) if isinstance(source, np.ndarray) else source
