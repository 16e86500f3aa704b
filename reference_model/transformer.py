"""The whole model: figure 1 of "Attention Is All You Need"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import causal_mask
from .config import ModelConfig
from .embedding import Embedding, LearnedPositions, SinusoidalPositions
from .layers import DecoderLayer, EncoderLayer, KeysValues, layer_norm


class Memory(Protocol):
    """What a decoder remembers of the target's earlier positions."""

    def append(self, layer: int, key: Tensor, value: Tensor) -> KeysValues:
        """New keys and values [B, H, Q, Dh] of one layer -> all it has, [B, H, K, Dh] each."""

    def length(self, queries: int) -> int:
        """K, the number of keys that `append` returns for that many queries."""


class NoMemory:
    """Decoding without a cache: the queries are the whole target."""

    def append(self, layer: int, key: Tensor, value: Tensor) -> KeysValues:
        return key, value

    def length(self, queries: int) -> int:
        return queries


class Encoder(nn.Module):
    def __init__(self, config: ModelConfig, embedding: Embedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.norm = layer_norm(config) if config.norm_order == "pre" else nn.Identity()

    def forward(self, source: Tensor, source_mask: Tensor) -> Tensor:
        """Source int64 [B, S], source_mask bool [B, S], True at tokens -> [B, S, D]"""
        position = torch.arange(source.shape[1], device=source.device)
        x = self.embedding(source, position)
        for layer in self.layers:
            x = layer(x, source_mask[:, None, None, :])
        return self.norm(x)


class Decoder(nn.Module):
    def __init__(self, config: ModelConfig, embedding: Embedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.norm = layer_norm(config) if config.norm_order == "pre" else nn.Identity()

    def cross_keys_values(self, encoded: Tensor) -> list[KeysValues]:
        """Encoded [B, S, D] -> keys and values [B, H, S, Dh] of each layer's cross-attention."""
        return [layer.cross_attention.keys_values(encoded) for layer in self.layers]  # type: ignore[union-attr,operator]

    def forward(
        self,
        token: Tensor,
        position: Tensor,
        source_mask: Tensor,
        cross: Sequence[KeysValues],
        memory: Memory,
    ) -> Tensor:
        """Hidden states of the queries.

        Args:
            token: int64 [B, Q]
            position: int64 [B], the position of each row's first query
            source_mask: bool [B, S]
            cross: per layer, keys and values of the source [B, H, S, Dh]
            memory: earlier positions

        Returns:
            [B, Q, D]
        """
        queries = token.shape[1]
        positions = position[:, None] + torch.arange(queries, device=token.device)
        self_mask = causal_mask(position, queries, memory.length(queries))
        x = self.embedding(token, positions)
        for index, layer in enumerate(self.layers):
            x = layer(
                x,
                remember=lambda key, value, index=index: memory.append(index, key, value),
                self_mask=self_mask,
                cross=cross[index],
                cross_mask=source_mask[:, None, None, :],
            )
        return self.norm(x)


class Output(nn.Module):
    """The projection to logits, with the target embedding's weight when tied (section 3.4)."""

    def __init__(self, weight: Tensor, *, bias: bool) -> None:
        super().__init__()
        self.weight = weight  # a Parameter; Embedding declares its own as Tensor
        self.bias = nn.Parameter(torch.zeros(weight.shape[0])) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[B, Q, D] -> logits [B, Q, V]"""
        return F.linear(x, self.weight, self.bias)


class Transformer(nn.Module):
    """The encoder-decoder Transformer that a `ModelConfig` describes."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        target_tokens = nn.Embedding(config.target_vocab_size, config.d_model)
        source_tokens = (
            target_tokens
            if config.tie_source_target
            else nn.Embedding(config.source_vocab_size, config.d_model)
        )
        self.encoder = Encoder(
            config, _embedding(config, source_tokens, config.max_source_positions)
        )
        self.decoder = Decoder(
            config, _embedding(config, target_tokens, config.max_target_positions)
        )
        output_weight = (
            target_tokens.weight
            if config.tie_target_output
            else nn.Parameter(torch.empty_like(target_tokens.weight))
        )
        self.output = Output(output_weight, bias=config.logits_bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot uniform for products (Glorot & Bengio 2010), N(0, 1/d_model) for embeddings."""
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue
            if "embedding" in name or name == "output.weight":
                nn.init.normal_(parameter, std=self.config.d_model**-0.5)
            else:
                nn.init.xavier_uniform_(parameter)

    def encode(self, source: Tensor, source_mask: Tensor) -> list[KeysValues]:
        """What the decoder needs of the source, computed once a sentence.

        Args:
            source: int64 [B, S]
            source_mask: bool [B, S], True at tokens, False at padding

        Returns:
            keys and values of each decoder layer's cross-attention, [B, H, S, Dh] each
        """
        return self.decoder.cross_keys_values(self.encoder(source, source_mask))

    def decode(
        self,
        token: Tensor,
        position: Tensor,
        source_mask: Tensor,
        cross: Sequence[KeysValues],
        memory: Memory,
    ) -> Tensor:
        """Logits [B, Q, V] of the queries; the arguments are those of `Decoder.forward`."""
        logits: Tensor = self.output(self.decoder(token, position, source_mask, cross, memory))
        return logits

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        """Teacher forcing: the logits [B, T, V] that follow each prefix of target [B, T]."""
        start = torch.zeros(target.shape[0], dtype=torch.long, device=target.device)
        return self.decode(target, start, source_mask, self.encode(source, source_mask), NoMemory())


def _embedding(config: ModelConfig, tokens: nn.Embedding, positions: int) -> Embedding:
    kind = LearnedPositions if config.positions == "learned" else SinusoidalPositions
    return Embedding(
        tokens,
        kind(positions, config.d_model),
        scale=config.scale_embedding,
        norm=layer_norm(config) if config.embedding_norm else None,
        dropout=config.dropout,
    )
