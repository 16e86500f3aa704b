"""Greedy decoding in PyTorch: without a cache (the oracle of all parity checks) and with one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .config import ModelConfig
from .layers import KeysValues
from .transformer import Transformer


class KeyValueCache:
    """Keys and values of the target's positions, in tensors of fixed capacity.

    Row b's next position is `position[b]`; every `append` writes there, and the caller moves
    `position` on once a step.
    """

    def __init__(self, config: ModelConfig, batch: int, capacity: int) -> None:
        shape = (batch, config.num_heads, capacity, config.head_size)
        self.capacity = capacity
        self.position = torch.zeros(batch, dtype=torch.long)
        self.layers: list[KeysValues] = [
            (torch.zeros(shape), torch.zeros(shape)) for _ in range(config.decoder_layers)
        ]

    def append(self, layer: int, key: Tensor, value: Tensor) -> KeysValues:
        keys, values = self.layers[layer]
        row = torch.arange(key.shape[0])[:, None]
        slot = self.position[:, None] + torch.arange(key.shape[2])
        keys[row, :, slot] = key.transpose(1, 2)
        values[row, :, slot] = value.transpose(1, 2)
        return keys, values

    def length(self, queries: int) -> int:
        return self.capacity


def pad(rows: Sequence[Sequence[int]], pad_token_id: int) -> tuple[Tensor, Tensor]:
    """Ragged token lists -> int64 [B, S], bool mask [B, S]."""
    length = max(len(row) for row in rows)
    tokens = torch.full((len(rows), length), pad_token_id, dtype=torch.long)
    mask = torch.zeros((len(rows), length), dtype=torch.bool)
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = torch.tensor(row, dtype=torch.long)
        mask[index, : len(row)] = True
    return tokens, mask


@torch.inference_mode()
def greedy_uncached(
    model: Transformer, sources: Sequence[Sequence[int]], max_new_tokens: int
) -> list[list[int]]:
    """Greedy output of each source: every step recomputes the whole prefix. Slow, and the oracle.

    Args:
        sources: token ids of each source, at least one each
        max_new_tokens: the most tokens to generate, the end token included

    Returns:
        generated ids of each source, without the start token, with the end token where reached
    """
    config = model.config
    source, source_mask = pad(sources, config.pad_token_id)
    target = torch.full((len(sources), 1), config.start_token_id)
    finished = torch.zeros(len(sources), dtype=torch.bool)
    while target.shape[1] <= max_new_tokens and not finished.all():
        logits = model(source, source_mask, target)
        token = logits[:, -1].argmax(-1)
        finished |= token == config.end_token_id
        target = torch.cat([target, token[:, None]], dim=1)
    return [_until_end(row[1:].tolist(), config.end_token_id) for row in target]


@torch.inference_mode()
def greedy_cached(
    model: Transformer, sources: Sequence[Sequence[int]], max_new_tokens: int
) -> list[list[int]]:
    """The same result as `greedy_uncached`, each step computing one position only."""
    config = model.config
    source, source_mask = pad(sources, config.pad_token_id)
    if max_new_tokens < 1:
        return [[] for _ in sources]
    cross = model.encode(source, source_mask)
    cache = KeyValueCache(config, len(sources), max_new_tokens)
    token = torch.full((len(sources),), config.start_token_id)
    finished = torch.zeros(len(sources), dtype=torch.bool)
    generated: list[Tensor] = []
    while len(generated) < max_new_tokens and not finished.all():
        logits = model.decode(token[:, None], cache.position, source_mask, cross, cache)
        token = logits[:, -1].argmax(-1)
        finished |= token == config.end_token_id
        generated.append(token)
        cache.position += 1
    rows = torch.stack(generated, dim=1).tolist()
    return [_until_end(row, config.end_token_id) for row in rows]


def _until_end(row: list[int], end_token_id: int) -> list[int]:
    return row[: row.index(end_token_id) + 1] if end_token_id in row else row
