"""The two stacks, encoder and decoder, from token ids or features to hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import RelativePositions, causal_mask
from .config import ModelConfig
from .embedding import AudioEmbedding, Embedding, LearnedPositions, SinusoidalPositions
from .layers import DecoderLayer, EncoderLayer, KeysValues, make_norm


class Memory(Protocol):
    """A decoder's memory of earlier target positions."""

    def append(self, layer: int, key: Tensor, value: Tensor) -> KeysValues:
        """New keys and values [B, H, Q, Dh] of a layer -> all of that layer's, [B, H, K, Dh]."""

    def length(self, queries: int) -> int:
        """K, the number of keys that `append` returns for this number of queries."""


class NoMemory:
    """Decoding without a cache: the queries are the complete target."""

    def append(self, layer: int, key: Tensor, value: Tensor) -> KeysValues:
        return key, value

    def length(self, queries: int) -> int:
        return queries


class Encoder(nn.Module):
    def __init__(self, config: ModelConfig, embedding: Embedding | AudioEmbedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.uncounted = None if config.pad_has_position else config.pad_token_id
        self.relative_positions = _relative_positions(config, both_sides=True)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.norm = make_norm(config) if config.has_final_norm else nn.Identity()

    def forward(
        self, source: Tensor, source_mask: Tensor | None, token_type: Tensor | None = None
    ) -> Tensor:
        """Encode a source.

        Args:
            source: tokens, int64 [B, S], or features, float [B, mel bins, 2 * S]
            source_mask: bool [B, S], True at tokens. Ignored for features: every frame of the
                window is attended to, including silence.
            token_type: int64 [B, S]; None: 0

        Returns:
            [B, S, D]
        """
        if isinstance(self.embedding, AudioEmbedding):
            x, mask = self.embedding(source), None
        else:
            assert source_mask is not None
            position = torch.arange(source.shape[1], device=source.device)
            if self.uncounted is not None:
                position = ((source != self.uncounted).long().cumsum(-1) - 1).clamp(min=0)
            x, mask = self.embedding(source, position, token_type), source_mask[:, None, None, :]
            if self.relative_positions is not None:
                mask = self.relative_positions.masked(position[None], mask)
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


class Decoder(nn.Module):
    def __init__(self, config: ModelConfig, embedding: Embedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.relative_positions = _relative_positions(config, both_sides=False)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.norm = make_norm(config) if config.has_final_norm else nn.Identity()

    def cross_keys_values(self, encoded: Tensor) -> list[KeysValues]:
        """Encoder output [B, S, D] -> cross-attention keys and values [B, H, S, Dh] per layer."""
        return [layer.cross_attention.keys_values(encoded) for layer in self.layers]  # type: ignore[union-attr,operator]

    def forward(
        self,
        token: Tensor,
        position: Tensor,
        source_mask: Tensor | None,
        cross: Sequence[KeysValues] | None,
        memory: Memory,
    ) -> Tensor:
        """Hidden states of the queries.

        Several rows may be decoded from each source, such as the beams of a search: row b of B
        belongs to source b // (B / G) of G, with B a multiple of G.

        Args:
            token: int64 [B, Q]
            position: int64 [B], the position of each row's first query
            source_mask: bool [G, S]; None: there is no encoder
            cross: per layer, keys and values of the sources [G, H, S, Dh]; None: likewise
            memory: of earlier positions

        Returns:
            [B, Q, D]
        """
        queries = token.shape[1]
        positions = position[:, None] + torch.arange(queries, device=token.device)
        self_mask = causal_mask(position, queries, memory.length(queries))
        if self.relative_positions is not None:
            self_mask = self.relative_positions.masked(positions, self_mask)
        cross_mask = None if source_mask is None else source_mask[:, None, None, :]
        x = self.embedding(token, positions)
        for index, layer in enumerate(self.layers):
            x = layer(
                x,
                remember=lambda key, value, index=index: memory.append(index, key, value),
                self_mask=self_mask,
                cross=None if cross is None else cross[index],
                cross_mask=cross_mask,
            )
        return self.norm(x)


class Output(nn.Module):
    """The projection to logits; when tied, its weight is the target embedding's (section 3.4)."""

    def __init__(self, weight: Tensor, *, bias: bool) -> None:
        super().__init__()
        self.weight = weight  # a Parameter; Embedding declares its own as Tensor
        self.bias = nn.Parameter(torch.zeros(weight.shape[0])) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[B, Q, D] -> logits [B, Q, V]"""
        return F.linear(x, self.weight, self.bias)


def target_output(config: ModelConfig, target_tokens: nn.Embedding) -> Output:
    """The decoder's projection to logits, of its token embedding's weight if they are tied."""
    weight = (
        target_tokens.weight
        if config.tie_target_output
        else nn.Parameter(torch.empty_like(target_tokens.weight))
    )
    return Output(weight, bias=config.logits_bias)


def initialize(model: nn.Module, config: ModelConfig) -> None:
    """Glorot uniform for linear maps (Glorot & Bengio 2010), N(0, 1/d_model) for embeddings."""
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            continue
        if "convolution" in name or "relative_positions" in name:
            continue  # these keep the initialization of their modules
        if "embedding" in name or name == "output.weight":
            nn.init.normal_(parameter, std=config.d_model**-0.5)
        elif name.endswith(".bilinear"):
            parameter.data[:] = torch.eye(parameter.shape[-1])  # as without it
        else:
            nn.init.xavier_uniform_(parameter)


def source_embedding(
    config: ModelConfig, target_tokens: nn.Embedding | None
) -> Embedding | AudioEmbedding:
    """
    Args:
        target_tokens: the decoder's; None: there is none
    """
    if config.source_vocab_size is not None:
        tokens = (
            target_tokens
            if target_tokens is not None and config.tie_source_target
            else nn.Embedding(config.source_vocab_size, config.d_model)
        )
        positions = config.max_source_positions
        return token_embedding(config, tokens, positions, types=config.token_types)
    assert config.feature_size is not None
    table = _positions(config, config.max_source_positions)
    assert table is not None
    return AudioEmbedding(config.feature_size, config.d_model, table, dropout=config.dropout)


def token_embedding(
    config: ModelConfig, tokens: nn.Embedding, positions: int, *, types: int = 0
) -> Embedding:
    return Embedding(
        tokens,
        _positions(config, positions),
        types=types,
        scale=config.scale_embedding,
        norm=make_norm(config) if config.embedding_norm else None,
        dropout=config.dropout,
        without_position=None if config.pad_has_position else config.pad_token_id,
    )


def _positions(
    config: ModelConfig, positions: int
) -> SinusoidalPositions | LearnedPositions | None:
    match config.positions:
        case "sinusoidal":
            return SinusoidalPositions(positions, config.d_model)
        case "learned":
            return LearnedPositions(positions, config.d_model)
    return None


def _relative_positions(config: ModelConfig, *, both_sides: bool) -> RelativePositions | None:
    if config.positions != "relative":
        return None
    return RelativePositions(
        config.num_heads,
        buckets=config.relative_buckets,
        max_distance=config.relative_max_distance,
        both_sides=both_sides,
    )
