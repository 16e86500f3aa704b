"""Greedy decoding in PyTorch: without a cache (the oracle of all parity checks) and with one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .config import ModelConfig
from .layers import KeysValues
from .transformer import NoMemory, Transformer


class KeyValueCache:
    """Keys and values of target positions, in tensors of fixed capacity.

    `append` writes at `position[b]` of each row b; the caller advances `position` after each step.

    Attributes:
        capacity: maximum number of positions
        position: int64 [B], the next position of each row
        layers: keys and values of each decoder layer, [B, H, capacity, Dh] each
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
    """Ragged token lists -> tokens int64 [B, S] and mask bool [B, S], True at tokens."""
    length = max(len(row) for row in rows)
    tokens = torch.full((len(rows), length), pad_token_id, dtype=torch.long)
    mask = torch.zeros((len(rows), length), dtype=torch.bool)
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = torch.tensor(row, dtype=torch.long)
        mask[index, : len(row)] = True
    return tokens, mask


Source = Sequence[int] | Tensor
"""Token ids, or audio features [mel bins, frames]."""


def as_batch(sources: Sequence[Source], config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Sources -> the arguments of `Transformer.encode`: tokens or features, and mask [B, S]."""
    features = [source for source in sources if isinstance(source, Tensor)]
    if features:
        mask = torch.ones((len(features), config.max_source_positions), dtype=torch.bool)
        return torch.stack(features), mask
    return pad([s for s in sources if not isinstance(s, Tensor)], config.pad_token_id)


@torch.inference_mode()
def greedy_uncached(
    model: Transformer, sources: Sequence[Source], max_new_tokens: int
) -> list[list[int]]:
    """Greedy output for each source. Every step recomputes the whole target: slow, and the oracle.

    Args:
        sources: token ids (at least one) or features of each source
        max_new_tokens: maximum number of tokens to generate, including the end token

    Returns:
        generated ids for each source, without start token and prompt, up to and including the end
        token
    """
    source, source_mask = as_batch(sources, model.config)
    rows = _Rows(model, sources, max_new_tokens)
    cross = model.encode(source, source_mask)
    start = torch.zeros(len(sources), dtype=torch.long)
    while rows.running:
        target = torch.tensor([rows.prompt + row for row in rows.new])
        logits = model.decode(target, start, source_mask, cross, NoMemory())
        rows.choose(logits[:, -1])
    return rows.outputs


@torch.inference_mode()
def greedy_cached(
    model: Transformer, sources: Sequence[Source], max_new_tokens: int
) -> list[list[int]]:
    """The same output as `greedy_uncached`, computing one new position per step."""
    source, source_mask = as_batch(sources, model.config)
    rows = _Rows(model, sources, max_new_tokens)
    cross = model.encode(source, source_mask)
    cache = KeyValueCache(model.config, len(sources), len(rows.prompt) + max_new_tokens)
    token = torch.tensor([rows.prompt] * len(sources))
    while rows.running:
        logits = model.decode(token, cache.position, source_mask, cross, cache)
        rows.choose(logits[:, -1])
        cache.position += token.shape[1]
        token = torch.tensor([[row[-1]] for row in rows.new])
    return rows.outputs


class _Rows:
    """The outputs of a batch so far. Finished rows keep decoding; the surplus is cut off at the
    end.

    Attributes:
        prompt: the tokens every row starts with, the start token included
        new: generated tokens of each row
    """

    def __init__(self, model: Transformer, sources: Sequence[Source], limit: int) -> None:
        self.generation, self.limit = model.generation, limit
        self.prompt = [model.config.start_token_id, *model.generation.prompt]
        self.end_tokens = model.generation.end_tokens(model.config.end_token_id)
        self.sources = [[] if isinstance(s, Tensor) else s for s in sources]
        self.new: list[list[int]] = [[] for _ in sources]

    @property
    def running(self) -> bool:
        return len(self.new[0]) < self.limit and any(
            set(self.end_tokens).isdisjoint(row) for row in self.new
        )

    @property
    def outputs(self) -> list[list[int]]:
        return [_until_end(row, self.end_tokens) for row in self.new]

    def choose(self, logits: Tensor) -> None:
        """Append the best token to every row; logits [B, V]."""
        if self.generation.is_plain:
            tokens = logits.argmax(-1).tolist()  # in one transfer: on a GPU each one synchronizes
        else:
            tokens = [
                int(self._scores(source, row, row_logits).argmax())
                for source, row, row_logits in zip(self.sources, self.new, logits, strict=True)
            ]
        for row, token in zip(self.new, tokens, strict=True):
            row.append(token)

    def _scores(self, source: Sequence[int], row: list[int], logits: Tensor) -> Tensor:
        return self.generation.scores(
            logits, source, self.prompt, row, end_tokens=self.end_tokens, limit=self.limit
        )


def _until_end(row: list[int], end_tokens: Sequence[int]) -> list[int]:
    end = next((i for i, token in enumerate(row) if token in end_tokens), len(row))
    return row[: end + 1]
