"""What stands on an encoder alone: hidden states -> vectors or logits. See `HeadConfig`."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import ModelConfig
from .head_config import HeadConfig
from .layers import ACTIVATIONS, make_norm


class Dense(nn.Module):
    """activation(x W + b)"""

    def __init__(self, head: HeadConfig, d_model: int) -> None:
        super().__init__()
        self.linear = nn.Linear(d_model, head.dense_size, bias=head.dense_bias)
        name = head.dense_activation
        self.activation = nn.Identity() if name == "identity" else ACTIVATIONS[name]

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., dense_size]"""
        return self.activation(self.linear(x))


def _dense(head: HeadConfig, d_model: int) -> Dense | nn.Identity:
    return Dense(head, d_model) if head.dense_size else nn.Identity()


class EmbeddingHead(nn.Module):
    """Pooling, a dense layer and normalization (Reimers & Gurevych 2019, section 3)."""

    def __init__(self, config: ModelConfig, head: HeadConfig) -> None:
        super().__init__()
        self.pooling, self.normalize = head.pooling, head.normalize
        self.dense = _dense(head, config.d_model)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Hidden states [B, S, D], mask bool [B, S] -> vectors [B, E]"""
        vector = self.dense(self._pooled(hidden, mask[..., None]))
        return F.normalize(vector, dim=-1) if self.normalize else vector

    def _pooled(self, hidden: Tensor, mask: Tensor) -> Tensor:
        match self.pooling:
            case "cls":
                return hidden[:, 0]
            case "max":
                return hidden.masked_fill(~mask, -math.inf).amax(1)
            case "mean":
                weight = mask.to(hidden.dtype)
                return (hidden * weight).sum(1) / weight.sum(1)


class SequenceClassificationHead(nn.Module):
    """A dense layer on the first token's hidden state, then a linear map."""

    def __init__(self, config: ModelConfig, head: HeadConfig) -> None:
        super().__init__()
        self.dense = _dense(head, config.d_model)
        self.output = nn.Linear(config.d_model, len(head.labels))

    def forward(self, hidden: Tensor) -> Tensor:
        """[B, S, D] -> logits [B, labels]"""
        return self.output(self.dense(hidden[:, 0]))


class TokenHead(nn.Module):
    """A linear map of each token's hidden state."""

    def __init__(self, config: ModelConfig, outputs: int) -> None:
        super().__init__()
        self.output = nn.Linear(config.d_model, outputs)

    def forward(self, hidden: Tensor) -> Tensor:
        """[B, S, D] -> logits [B, S, outputs]"""
        return self.output(hidden)


class MaskedLanguageModelHead(nn.Module):
    """A dense layer and LayerNorm, then the token embedding's transpose, and a bias."""

    def __init__(self, config: ModelConfig, head: HeadConfig, table: Tensor) -> None:
        super().__init__()
        self.dense = _dense(head, config.d_model)
        self.norm = make_norm(config)
        self.weight = table
        self.bias = nn.Parameter(torch.zeros(table.shape[0]))

    def forward(self, hidden: Tensor) -> Tensor:
        """[B, S, D] -> logits [B, S, V]"""
        return F.linear(self.norm(self.dense(hidden)), self.weight, self.bias)
