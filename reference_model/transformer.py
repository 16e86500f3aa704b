"""The complete model: figure 1 of "Attention Is All You Need"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import RelativePositions, causal_mask
from .config import ModelConfig
from .embedding import AudioEmbedding, Embedding, LearnedPositions, SinusoidalPositions
from .generation import GenerationConfig
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

    def forward(self, source: Tensor, source_mask: Tensor | None) -> Tensor:
        """Encode a source.

        Args:
            source: tokens, int64 [B, S], or features, float [B, mel bins, 2 * S]
            source_mask: bool [B, S], True at tokens. Ignored for features: every frame of the
                window is attended to, including silence.

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
            x, mask = self.embedding(source, position), source_mask[:, None, None, :]
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
        source_mask: Tensor,
        cross: Sequence[KeysValues],
        memory: Memory,
    ) -> Tensor:
        """Hidden states of the queries.

        Several rows may be decoded from each source, such as the beams of a search: row b of B
        belongs to source b // (B / G) of G, with B a multiple of G.

        Args:
            token: int64 [B, Q]
            position: int64 [B], the position of each row's first query
            source_mask: bool [G, S]
            cross: per layer, keys and values of the sources [G, H, S, Dh]
            memory: of earlier positions

        Returns:
            [B, Q, D]
        """
        queries = token.shape[1]
        positions = position[:, None] + torch.arange(queries, device=token.device)
        self_mask = causal_mask(position, queries, memory.length(queries))
        if self.relative_positions is not None:
            self_mask = self.relative_positions.masked(positions, self_mask)
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
    """The projection to logits; when tied, its weight is the target embedding's (section 3.4)."""

    def __init__(self, weight: Tensor, *, bias: bool) -> None:
        super().__init__()
        self.weight = weight  # a Parameter; Embedding declares its own as Tensor
        self.bias = nn.Parameter(torch.zeros(weight.shape[0])) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[B, Q, D] -> logits [B, Q, V]"""
        return F.linear(x, self.weight, self.bias)


class Transformer(nn.Module):
    """The encoder-decoder Transformer that a `ModelConfig` describes."""

    def __init__(self, config: ModelConfig, generation: GenerationConfig | None = None) -> None:
        super().__init__()
        self.config = config
        self.generation = generation or GenerationConfig()
        target_tokens = nn.Embedding(config.target_vocab_size, config.d_model)
        self.encoder = Encoder(config, _source_embedding(config, target_tokens))
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
        """Glorot uniform for linear maps (Glorot & Bengio 2010), N(0, 1/d_model) for embeddings."""
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue
            if "convolution" in name or "relative_positions" in name:
                continue  # these keep the initialization of their modules
            if "embedding" in name or name == "output.weight":
                nn.init.normal_(parameter, std=self.config.d_model**-0.5)
            else:
                nn.init.xavier_uniform_(parameter)

    def encode(self, source: Tensor, source_mask: Tensor | None) -> list[KeysValues]:
        """Encode a source for the decoder, once per sentence.

        Args:
            source: tokens, int64 [B, S], or features, float [B, mel bins, 2 * S]
            source_mask: bool [B, S], True at tokens, False at padding; None for features

        Returns:
            keys and values for each decoder layer's cross-attention, [B, H, S, Dh] each
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
        """Logits [B, Q, V] of the queries; takes the arguments of `Decoder.forward`."""
        logits: Tensor = self.output(self.decoder(token, position, source_mask, cross, memory))
        return logits

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        """Teacher forcing: the next-token logits [B, T, V] for each prefix of the target [B, T]."""
        start = torch.zeros(target.shape[0], dtype=torch.long, device=target.device)
        return self.decode(target, start, source_mask, self.encode(source, source_mask), NoMemory())


def _source_embedding(
    config: ModelConfig, target_tokens: nn.Embedding
) -> Embedding | AudioEmbedding:
    if config.source_vocab_size is not None:
        tokens = (
            target_tokens
            if config.tie_source_target
            else nn.Embedding(config.source_vocab_size, config.d_model)
        )
        return _embedding(config, tokens, config.max_source_positions)
    assert config.feature_size is not None
    positions = _positions(config, config.max_source_positions)
    assert positions is not None
    return AudioEmbedding(config.feature_size, config.d_model, positions, dropout=config.dropout)


def _embedding(config: ModelConfig, tokens: nn.Embedding, positions: int) -> Embedding:
    return Embedding(
        tokens,
        _positions(config, positions),
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
