"""Greedy decoding in PyTorch, without a cache (the oracle of all parity checks) and with one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .config import ModelConfig
from .layers import KeysValues
from .models import AutoregressiveModel, LanguageModel, Source, Transformer, as_batch


class KeyValueCache:
    """Keys and values of target positions, in tensors of fixed capacity.

    `append` writes at `position[b]` of each row b; the caller advances `position` after each step.

    Attributes:
        capacity: maximum number of positions
        position: int64 [B], the next position of each row
        layers: keys and values of each decoder layer, [B, H, capacity, Dh or Dv] each
    """

    def __init__(self, config: ModelConfig, batch: int, capacity: int) -> None:
        shape = (batch, config.num_heads, capacity)
        self.capacity = capacity
        self.position = torch.zeros(batch, dtype=torch.long)
        self.layers: list[KeysValues] = [
            (torch.zeros(*shape, config.head_size), torch.zeros(*shape, config.value_size))
            for _ in range(config.decoder_layers)
        ]

    def append(self, layer: int, key: Tensor, value: Tensor) -> KeysValues:
        """Write keys and values at the next positions; return all keys and values of the layer."""
        keys, values = self.layers[layer]
        row = torch.arange(key.shape[0])[:, None]
        slot = self.position[:, None] + torch.arange(key.shape[2])
        keys[row, :, slot] = key.transpose(1, 2)
        values[row, :, slot] = value.transpose(1, 2)
        return keys, values

    def length(self, queries: int) -> int:
        """Return the capacity."""
        return self.capacity


def most_new_tokens(model: AutoregressiveModel, prompt: Sequence[int], limit: int) -> int:
    """Return the limit, or the number of positions that a language model has after its prompt.

    The last new token needs no position, since the model does not read it.
    """
    if not isinstance(model, LanguageModel):
        return limit
    return min(limit, model.config.max_target_positions + 1 - len(prompt))


@torch.inference_mode()
def greedy_uncached(
    model: AutoregressiveModel, sources: Sequence[Source], max_new_tokens: int
) -> list[list[int]]:
    """Decode each source greedily, recomputing the whole target at every step.

    It is slow and serves as the oracle for all other greedy decoding.

    Args:
        sources: token ids (at least one) or features of each source; for a language model, the
            tokens of the text to continue
        max_new_tokens: maximum number of tokens to generate, including the end token; a language
            model stops earlier when its positions are used up

    Returns:
        generated ids for each source, without start token and prompt, up to and including the end
        token
    """
    outputs: dict[int, list[int]] = {}
    for group in _with_equal_prompts(model, sources):
        rows = _Rows(model, [sources[i] for i in group], max_new_tokens)
        target_logits = model.target_logits(rows.sources)
        while rows.running:
            logits = target_logits(torch.tensor(rows.targets))
            rows.choose(logits[:, -1])
        outputs.update(zip(group, rows.outputs, strict=True))
    return [outputs[i] for i in range(len(sources))]


def _with_equal_prompts(model: AutoregressiveModel, sources: Sequence[Source]) -> list[list[int]]:
    """Group the indices of sources whose prompts have the same length."""
    groups: dict[int, list[int]] = {}
    for index, source in enumerate(sources):
        groups.setdefault(len(model.prompt(source)), []).append(index)
    return list(groups.values())


@torch.inference_mode()
def greedy_cached(
    model: Transformer, sources: Sequence[Source], max_new_tokens: int
) -> list[list[int]]:
    """Decode as `greedy_uncached` does, computing one new position per step."""
    source, source_mask = as_batch(sources, model.config)
    rows = _Rows(model, sources, max_new_tokens)
    cross = model.encode(source, source_mask)
    token = torch.tensor(rows.targets)
    cache = KeyValueCache(model.config, len(sources), token.shape[1] + max_new_tokens)
    while rows.running:
        logits = model.decode(token, cache.position, source_mask, cross, cache)
        rows.choose(logits[:, -1])
        cache.position += token.shape[1]
        token = torch.tensor([[row[-1]] for row in rows.new])
    return rows.outputs


class _Rows:
    """The outputs of a batch so far.

    Finished rows keep decoding; the surplus is cut off at the end.

    Attributes:
        prompts: first tokens of each row, of equal number
        new: generated tokens of each row
    """

    def __init__(self, model: AutoregressiveModel, sources: Sequence[Source], limit: int) -> None:
        self.model, self.sources = model, sources
        self.prompts = [model.prompt(source) for source in sources]
        self.limit = most_new_tokens(model, self.prompts[0], limit)
        self.end_tokens = model.generation.end_tokens(model.config.end_token_id)
        self.new: list[list[int]] = [[] for _ in sources]

    @property
    def targets(self) -> list[list[int]]:
        """Prompts and generated tokens."""
        return [prompt + row for prompt, row in zip(self.prompts, self.new, strict=True)]

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
        if self.model.generation.is_plain:
            tokens = logits.argmax(-1).tolist()  # one transfer, since each one synchronizes a GPU
        else:
            tokens = [int(self._scores(i, row).argmax()) for i, row in enumerate(logits)]
        for row, token in zip(self.new, tokens, strict=True):
            row.append(token)

    def _scores(self, index: int, logits: Tensor) -> Tensor:
        return self.model.generation.scores(
            logits,
            self.model.source_tokens(self.sources[index]),
            self.prompts[index],
            self.new[index],
            end_tokens=self.end_tokens,
            limit=self.limit,
        )


def _until_end(row: list[int], end_tokens: Sequence[int]) -> list[int]:
    end = next((i for i, token in enumerate(row) if token in end_tokens), len(row))
    return row[: end + 1]
