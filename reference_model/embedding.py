"""Token and position embeddings: sections 3.4 and 3.5 of "Attention Is All You Need"."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import Norm


def sinusoids(positions: int, d_model: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(same), section 3.5.

    Computed in float64, returned as float32 [positions, d_model].
    """
    exponent = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
    angle = torch.arange(positions, dtype=torch.float64)[:, None] / 10000.0**exponent
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2).float()


class SinusoidalPositions(nn.Module):
    """The fixed table of section 3.5; it is a buffer, not a weight, so checkpoints omit it."""

    table: Tensor

    def __init__(self, positions: int, d_model: int) -> None:
        super().__init__()
        self.register_buffer("table", sinusoids(positions, d_model), persistent=False)

    def forward(self, position: Tensor) -> Tensor:
        """int64 [...] -> [..., D]"""
        return F.embedding(position, self.table)


class LearnedPositions(nn.Module):
    def __init__(self, positions: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(positions, d_model))
        nn.init.normal_(self.table, std=d_model**-0.5)

    def forward(self, position: Tensor) -> Tensor:
        """int64 [...] -> [..., D]"""
        return F.embedding(position, self.table)


class Embedding(nn.Module):
    """The input of a stack: dropout(token embedding * sqrt(d_model) + position), section 5.4."""

    def __init__(
        self,
        tokens: nn.Embedding,
        positions: SinusoidalPositions | LearnedPositions | None,
        *,
        types: int = 0,
        scale: bool,
        norm: Norm | None,
        dropout: float,
        without_position: int | None = None,
    ) -> None:
        """
        Args:
            types: kinds of segments, whose embeddings are added (Devlin et al. 2018, figure 2)
            without_position: a token that gets no position embedding
        """
        super().__init__()
        self.tokens = tokens
        self.without_position = without_position
        self.positions = positions
        self.types = nn.Embedding(types, tokens.embedding_dim) if types else None
        self.scale = math.sqrt(tokens.embedding_dim) if scale else 1.0
        self.norm = norm
        self.dropout = nn.Dropout(dropout)

    def forward(self, token: Tensor, position: Tensor, token_type: Tensor | None = None) -> Tensor:
        """Tokens and their types int64 [B, T], positions int64 broadcastable to them -> [B, T, D]

        Without types, all are 0.
        """
        x = self.tokens(token)
        if self.scale != 1.0:
            x = x * self.scale
        if self.positions is not None:
            positions = self.positions(position)
            if self.without_position is not None:
                positions = positions * (token != self.without_position)[..., None]
            x = x + positions
        if self.types is not None:
            x = x + (self.types.weight[0] if token_type is None else self.types(token_type))
        if self.norm is not None:
            x = self.norm(x)
        return self.dropout(x)


class AudioEmbedding(nn.Module):
    """The input of a speech model's encoder: two convolutions over the frames, each followed by
    GELU, the second with stride 2, then positions (Radford et al. 2022, section 2.2).
    """

    def __init__(
        self,
        feature_size: int,
        d_model: int,
        positions: SinusoidalPositions | LearnedPositions,
        *,
        dropout: float,
    ) -> None:
        super().__init__()
        self.first_convolution = nn.Conv1d(feature_size, d_model, kernel_size=3, padding=1)
        self.second_convolution = nn.Conv1d(d_model, d_model, kernel_size=3, stride=2, padding=1)
        self.positions = positions
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor) -> Tensor:
        """Features float [B, mel bins, 2 * S] -> [B, S, D]"""
        x = F.gelu(self.first_convolution(features))
        x = F.gelu(self.second_convolution(x)).transpose(1, 2)
        return self.dropout(x + self.positions(torch.arange(x.shape[1], device=x.device)))
