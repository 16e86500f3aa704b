"""Scaled dot-product and multi-head attention: section 3.2 of "Attention Is All You Need".

Dimensions used here and below:
    B batch: rows   G sources, which the rows of a decoder share evenly
    S source length   T target length   Q queries   K keys
    D d_model   H heads   Dh head size
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

AttentionFunction = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]

MASKED_SCORE = -1e4
"""Added to the score of a key that must not be attended to, where the mask is additive: exp of it
is 0 in every precision, and it is representable in 16 bits."""


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> Tensor:
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V, equation 1.

    Args:
        query: [B, H, Q, Dh]
        key, value: [B, H, K, Dh]
        mask: broadcastable to [B, H, Q, K]. bool: True where the query may attend to the key;
            float: added to the scores; None: every query attends to every key

    Returns:
        [B, H, Q, Dh]
    """
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return torch.softmax(scores, dim=-1) @ value


def causal_mask(position: Tensor, queries: int, keys: int) -> Tensor:
    """Which keys each query may attend to: its own position and all earlier ones.

    Args:
        position: int64 [B], the position of each row's first query

    Returns:
        bool [B, 1, Q, K]; True where key index <= position + query index.
    """
    query_index = position[:, None] + torch.arange(queries, device=position.device)
    key_index = torch.arange(keys, device=position.device)
    return (key_index[None, None, :] <= query_index[:, :, None])[:, None]


class RelativePositions(nn.Module):
    """Relative position biases: each head adds to the score of a key a learned number that depends
    on the bucket of its distance from the query (Raffel et al. 2020, section 2.1). All layers of a
    stack share them.

    Half of the buckets hold one distance each; the widths of the others grow logarithmically up to
    `max_distance`. Where queries attend to keys on both sides, each side has half of the buckets.
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
        """Biases for queries at positions int64 [B, Q] and keys at 0 ... K - 1 -> [B, H, Q, K]"""
        key = torch.arange(keys, device=position.device)
        distance = (key - position[:, :, None]).clamp(-self.max_distance, self.max_distance)
        by_distance = F.embedding(self.bucket, self.table)
        return F.embedding(distance + self.max_distance, by_distance).permute(0, 3, 1, 2)

    def masked(self, position: Tensor, mask: Tensor) -> Tensor:
        """Biases, or `MASKED_SCORE` where mask, bool broadcastable to [B, H, Q, K], is False."""
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
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O, section 3.2.2.

    Keys and values are projected separately from the query, so that a decoder can cache them:
    those of the source are computed once per sentence, those of a target token once per token.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        head_size: int,
        *,
        query_bias: bool,
        key_bias: bool,
        value_bias: bool,
        output_bias: bool,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_size = head_size
        inner = num_heads * head_size
        self.query = nn.Linear(d_model, inner, bias=query_bias)
        self.key = nn.Linear(d_model, inner, bias=key_bias)
        self.value = nn.Linear(d_model, inner, bias=value_bias)
        self.output = nn.Linear(inner, d_model, bias=output_bias)
        self.attend: AttentionFunction = scaled_dot_product_attention

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Memory [B, K, D] -> key, value, each [B, H, K, Dh]."""
        return self._split_heads(self.key(memory)), self._split_heads(self.value(memory))

    def forward(self, x: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """X [B, Q, D], key and value [B, H, K, Dh], mask as in `AttentionFunction` -> [B, Q, D]."""
        heads = self.attend(self._split_heads(self.query(x)), key, value, mask)
        return self.output(self._merge_heads(heads))

    def _split_heads(self, x: Tensor) -> Tensor:
        """[B, K, H * Dh] -> [B, H, K, Dh]"""
        return x.unflatten(-1, (self.num_heads, self.head_size)).transpose(1, 2)

    def _merge_heads(self, x: Tensor) -> Tensor:
        """[B, H, Q, Dh] -> [B, Q, H * Dh]"""
        return x.transpose(1, 2).flatten(-2)


class CrossAttention(MultiHeadAttention):
    """Attention to sources, of which each may have several rows, such as the beams of a search.

    The queries of all rows of a source attend together: its keys and values exist once and are read
    once, however many rows there are.
    """

    def forward(self, x: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Row b of B attends to source b // (B / G) of G, with B a multiple of G.

        Args:
            x: [B, Q, D]
            key, value: [G, H, S, Dh]
            mask: as in `AttentionFunction`, broadcastable to [G, H, B / G * Q, S]

        Returns:
            [B, Q, D]
        """
        sources, (rows, queries, _) = key.shape[0], x.shape
        together = self.query(x).reshape(sources, -1, self.num_heads, self.head_size)
        heads = self.attend(together.transpose(1, 2), key, value, mask)
        inner = self.num_heads * self.head_size
        return self.output(heads.transpose(1, 2).reshape(rows, queries, inner))
