"""Scaled dot-product and multi-head attention: section 3.2 of "Attention Is All You Need".

Dimensions used here and below:
    B batch: rows   G sources, which the rows of a decoder share evenly
    S source length   T target length   Q queries   K keys
    D d_model   H heads   Dh head size   Dv head size of values, by default Dh
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import ModelConfig

AttentionFunction = Callable[[Tensor, Tensor, Tensor, Tensor | None, float | None], Tensor]
Reshape = Callable[[Tensor, Sequence[int]], Tensor]

MASKED_SCORE = -1e4
"""The score that an additive mask adds to excluded keys. Its exp is 0 in every precision, and it is
representable in 16 bits."""


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None = None
) -> Tensor:
    """Compute Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V, equation 1: [B, H, Q, Dv].

    Args:
        query: [B, H, Q, Dh]
        key: [B, H, K, Dh]
        value: [B, H, K, Dv]
        mask: broadcastable to [B, H, Q, K]. bool: True where the query may attend to the key;
            float: added to the scores; None: every query attends to every key
        scale: factor of the scores; None: 1 / sqrt(d_k)
    """
    return attention_weights(query, key, mask, scale) @ value


def attention_weights(
    query: Tensor, key: Tensor, mask: Tensor | None, scale: float | None = None
) -> Tensor:
    """Return how much each query attends to each key: softmax(Q K^T / sqrt(d_k)), [B, H, Q, K].

    The arguments are those of `scaled_dot_product_attention`. Each row sums to 1, and is 0 at keys
    that the mask excludes.
    """
    scores = query @ key.transpose(-2, -1)
    scores = scores / math.sqrt(query.shape[-1]) if scale is None else scores * scale
    return _softmax(scores, mask)


def _softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return torch.softmax(scores, dim=-1)


def causal_mask(position: Tensor, queries: int, keys: int) -> Tensor:
    """Return a mask that lets each query attend to its own position and all earlier ones.

    It is bool [B, 1, Q, K]. `position` is int64 [B], the position of each row's first query.
    """
    query_index = position[:, None] + torch.arange(queries, device=position.device)
    key_index = torch.arange(keys, device=position.device)
    return (key_index[None, None, :] <= query_index[:, :, None])[:, None]


class RelativePositions(nn.Module):
    """Relative position biases, shared by all layers of a stack (Raffel et al. 2020, section 2.1).

    Each head adds a learned number to the score of a key, by the bucket of its distance to the
    query. Half of the buckets hold one distance each; the widths of the others grow
    logarithmically up to `max_distance`. Each side to which queries attend has its own buckets.
    """

    bucket: Tensor

    def __init__(
        self, num_heads: int, *, buckets: int, max_distance: int, both_sides: bool
    ) -> None:
        super().__init__()
        self.max_distance = max_distance
        self.table = nn.Parameter(torch.empty(buckets, num_heads))
        nn.init.normal_(self.table, std=0.1)
        distance = torch.arange(-max_distance, max_distance + 1)
        table = _buckets(distance, buckets, max_distance, both_sides=both_sides)
        self.register_buffer("bucket", table, persistent=False)

    def forward(self, position: Tensor, keys: int) -> Tensor:
        """Compute biases [B, H, Q, K] for queries at positions [B, Q] and keys at 0 ... K - 1."""
        key = torch.arange(keys, device=position.device)
        distance = (key - position[:, :, None]).clamp(-self.max_distance, self.max_distance)
        by_distance = F.embedding(self.bucket, self.table)
        return F.embedding(distance + self.max_distance, by_distance).permute(0, 3, 1, 2)

    def masked(self, position: Tensor, mask: Tensor) -> Tensor:
        """Compute the biases, with `MASKED_SCORE` where a bool mask [B, H, Q, K] is False."""
        return torch.where(mask, self(position, mask.shape[-1]), MASKED_SCORE)


def _buckets(distance: Tensor, buckets: int, max_distance: int, *, both_sides: bool) -> Tensor:
    """Key position minus query position, int64 -> bucket, int64."""
    later = torch.zeros_like(distance)
    if both_sides:
        buckets //= 2
        later = (distance > 0).long() * buckets
        distance = distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    exact = buckets // 2
    # float32, as in training: a bucket's boundary can fall exactly on an integer.
    ratio = (distance.clamp(min=1).float() / exact).log() / math.log(max_distance / exact)
    coarse = (exact + (ratio * (buckets - exact)).long()).clamp(max=buckets - 1)
    return later + torch.where(distance < exact, distance, coarse)


class MultiHeadAttention(nn.Module):
    """Multi-head attention, Concat(head_1, ..., head_h) W^O, section 3.2.2.

    Keys and values are projected separately from the query, so that a decoder can cache them.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads, self.head_size = config.num_heads, config.head_size
        self.value_size, self.scale = config.value_size, config.score_scale
        width, inner = config.d_model, config.num_heads * config.head_size
        values = config.num_heads * config.value_size
        self.query = nn.Linear(width, inner, bias=config.query_bias)
        self.key = nn.Linear(width, inner, bias=config.key_bias)
        self.value = nn.Linear(width, values, bias=config.value_bias)
        self.output = nn.Linear(values, width, bias=config.attention_output_bias)
        self.bilinear = None
        if config.bilinear_scores:
            shape = (config.num_heads, config.head_size, config.head_size)
            self.bilinear = nn.Parameter(torch.empty(shape))
        self.dropout = nn.Dropout(config.attention_dropout)
        self.attend: AttentionFunction = scaled_dot_product_attention
        self.reshape: Reshape = torch.reshape

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Project memory [B, K, D] to keys [B, H, K, Dh] and values [B, H, K, Dv]."""
        return self._split_heads(self.key(memory)), self._split_heads(self.value(memory))

    def forward(self, x: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Attend to keys [B, H, K, Dh] and values [B, H, K, Dv], [B, Q, D] -> [B, Q, D].

        The mask is that of `scaled_dot_product_attention`.
        """
        heads = self._attended(self._split_heads(self.query(x)), key, value, mask)
        return self.output(self._join_heads(heads, x))

    def _attended(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Query [B, H, Q, Dh], key, value and mask -> [B, H, Q, Dv]."""
        if self.bilinear is not None:
            query = query @ self.bilinear
        if self.training and self.dropout.p:
            return self.dropout(attention_weights(query, key, mask, self.scale)) @ value
        return self.attend(query, key, value, mask, self.scale)

    # `flatten` and `unflatten` are exported as several operators.

    def _split_heads(self, x: Tensor) -> Tensor:
        """[B, K, H * Dh] -> [B, H, K, Dh], and with Dv for values."""
        return self.reshape(x, (*x.shape[:2], self.num_heads, -1)).transpose(1, 2)

    def _join_heads(self, heads: Tensor, x: Tensor) -> Tensor:
        """[G, H, B / G * Q, Dv] -> [B, Q, H * Dv] for x [B, Q, D]."""
        width = self.num_heads * self.value_size
        return self.reshape(heads.transpose(1, 2), (*x.shape[:2], width))


class CrossAttention(MultiHeadAttention):
    """Attention to a source, which several rows may share, such as the beams of a search.

    The queries of all rows of a source attend together, so its keys and values are read only once.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.additive = None
        if config.additive_scores:
            self.additive = nn.Parameter(torch.empty(config.num_heads, 1, 1, config.head_size))

    def forward(self, x: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Attend to sources, [B, Q, D] -> [B, Q, D]. Row b attends to source b // (B / G).

        Args:
            key: [G, H, S, Dh]
            value: [G, H, S, Dv]
            mask: broadcastable to [G, H, B / G * Q, S], see `scaled_dot_product_attention`
        """
        shape = (key.shape[0], -1, self.num_heads, key.shape[-1])
        together = self.reshape(self.query(x), shape)
        heads = self._attended(together.transpose(1, 2), key, value, mask)
        return self.output(self._join_heads(heads, x))

    def _attended(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        if self.additive is None:
            return super()._attended(query, key, value, mask)
        hidden = torch.tanh(query[:, :, :, None] + key[:, :, None])  # [G, H, Q, S, Dh]
        weights: Tensor = self.dropout(_softmax((hidden * self.additive).sum(-1), mask))
        return weights @ value
