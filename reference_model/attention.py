"""Scaled dot-product and multi-head attention: section 3.2 of "Attention Is All You Need".

Dimensions used here and below:
    B batch   S source length   T target length   Q queries   K keys
    D d_model   H heads   Dh head size
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

AttentionFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V, equation 1.

    Args:
        query: [B, H, Q, Dh]
        key, value: [B, H, K, Dh]
        mask: bool, broadcastable to [B, H, Q, K]; True where the query may attend to the key.

    Returns:
        [B, H, Q, Dh]
    """
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    scores = scores.masked_fill(~mask, -math.inf)
    return torch.softmax(scores, dim=-1) @ value


def causal_mask(position: Tensor, queries: int, keys: int) -> Tensor:
    """Which keys each query may see: its own position and all before it.

    Args:
        position: int64 [B], the position of each row's first query.

    Returns:
        bool [B, 1, Q, K]; True where key index <= position + query index.
    """
    query_index = position[:, None] + torch.arange(queries, device=position.device)
    key_index = torch.arange(keys, device=position.device)
    return (key_index[None, None, :] <= query_index[:, :, None])[:, None]


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O, section 3.2.2.

    Keys and values are projected apart from the query, so that a decoder can keep them: those of
    the source are computed once a sentence, those of earlier target tokens once a token.
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

    def forward(self, x: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """X [B, Q, D], key and value [B, H, K, Dh], mask as in `AttentionFunction` -> [B, Q, D]."""
        heads = self.attend(self._split_heads(self.query(x)), key, value, mask)
        return self.output(self._merge_heads(heads))

    def _split_heads(self, x: Tensor) -> Tensor:
        """[B, K, H * Dh] -> [B, H, K, Dh]"""
        return x.unflatten(-1, (self.num_heads, self.head_size)).transpose(1, 2)

    def _merge_heads(self, x: Tensor) -> Tensor:
        """[B, H, Q, Dh] -> [B, Q, H * Dh]"""
        return x.transpose(1, 2).flatten(-2)
