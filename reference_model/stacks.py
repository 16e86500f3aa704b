"""The two stacks, encoder and decoder, from tokens or features to hidden states.

Each begins with an embedding: sections 3.4 and 3.5 of "Attention Is All You Need".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import RelativePositions, causal_mask
from .config import ModelConfig
from .layers import DecoderLayer, EncoderLayer, KeysValues, RecurrentUnit, make_norm


def sinusoids(positions: int, d_model: int) -> Tensor:
    """Compute the sinusoidal positions of section 3.5 in float64, as float32 [positions, d_model].

    PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(same).
    """
    exponent = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
    angle = torch.arange(positions, dtype=torch.float64)[:, None] / 10000.0**exponent
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2).float()


class Positions(nn.Module):
    """A table of positions."""

    table: Tensor

    def forward(self, position: Tensor) -> Tensor:
        """Look positions up, int64 [...] -> [..., D]."""
        return F.embedding(position, self.table)


class SinusoidalPositions(Positions):
    """The fixed table of section 3.5: a buffer, not a weight, so checkpoints omit it."""

    def __init__(self, positions: int, d_model: int) -> None:
        super().__init__()
        self.register_buffer("table", sinusoids(positions, d_model), persistent=False)


class LearnedPositions(Positions):
    """A learned table of positions."""

    def __init__(self, positions: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(positions, d_model))
        nn.init.normal_(self.table, std=d_model**-0.5)


class Embedding(nn.Module):
    """The input of a stack: dropout(token embedding * sqrt(d_model) + position), section 5.4."""

    def __init__(
        self, config: ModelConfig, tokens: nn.Embedding, positions: int, types: int = 0
    ) -> None:
        """Make the tables of positions and of `types` kinds of segments (Devlin et al. 2018)."""
        super().__init__()
        self.tokens = tokens
        self.without_position = None if config.pad_has_position else config.pad_token_id
        self.positions = _positions(config, positions)
        self.types = nn.Embedding(types, tokens.embedding_dim) if types else None
        self.scale = math.sqrt(tokens.embedding_dim) if config.scale_embedding else 1.0
        self.norm = make_norm(config, tokens.embedding_dim) if config.embedding_norm else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, token: Tensor, position: Tensor, token_type: Tensor | None = None) -> Tensor:
        """Embed tokens, int64 [B, T] -> [B, T, D].

        Args:
            position: int64, broadcastable to [B, T]
            token_type: int64 [B, T]; None: all 0
        """
        x = self.tokens(token)
        if self.scale != 1.0:
            x = x * self.scale
        if self.positions is not None:
            positions = self.positions(position)
            if self.without_position is not None:
                positions = positions * (token != self.without_position)[..., None]
            x = x + positions
        if self.types is not None and self.types.num_embeddings == 1:
            x = x + self.types.weight
        elif self.types is not None:
            x = x + (self.types.weight[0] if token_type is None else self.types(token_type))
        if self.norm is not None:
            x = self.norm(x)
        return self.dropout(x)


class AudioEmbedding(nn.Module):
    """The input of a speech model's encoder (Radford et al. 2022, section 2.2).

    Two convolutions over the frames, the second with stride 2, each followed by GELU; positions.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        features, width = config.feature_size, config.d_model
        positions = _positions(config, config.max_source_positions)
        assert features is not None and positions is not None
        self.first_convolution = nn.Conv1d(features, width, kernel_size=3, padding=1)
        self.second_convolution = nn.Conv1d(width, width, kernel_size=3, stride=2, padding=1)
        self.positions = positions
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, features: Tensor) -> Tensor:
        """Embed features, float [B, mel bins, 2 * S] -> [B, S, D]."""
        x = F.gelu(self.first_convolution(features))
        x = F.gelu(self.second_convolution(x)).transpose(1, 2)
        return self.dropout(x + self.positions(torch.arange(x.shape[1], device=x.device)))


class Memory(Protocol):
    """A decoder's memory of earlier target positions."""

    def append(self, layer: int, key: Tensor, value: Tensor) -> KeysValues:
        """Add a layer's new keys and values, [B, H, Q, Dh]; return all of them, [B, H, K, Dh]."""

    def length(self, queries: int) -> int:
        """Return the number K of keys that `append` returns for this number of queries."""

    def carry(self, layer: int, unit: RecurrentUnit, *inputs: Tensor) -> Tensor:
        """Move a recurrent layer's state on by queries; see the `states_after` of its unit."""


class NoMemory:
    """The memory of decoding without a cache, where the queries are the complete target."""

    def append(self, layer: int, key: Tensor, value: Tensor) -> KeysValues:
        """Return these keys and values."""
        return key, value

    def length(self, queries: int) -> int:
        """Return the number of queries."""
        return queries

    def carry(self, layer: int, unit: RecurrentUnit, *inputs: Tensor) -> Tensor:
        """Return the states after each query, from a state of zeros on."""
        return unit.states_after(torch.zeros_like(inputs[0][:, 0]), *inputs)


class Encoder(nn.Module):
    """The encoder: an embedding, and layers of self-attention over all source positions."""

    def __init__(self, config: ModelConfig, embedding: Embedding | AudioEmbedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.uncounted = None if config.pad_has_position else config.pad_token_id
        self.relative_positions = _relative_positions(config, both_sides=True)
        self.projection: nn.Module = nn.Identity()
        if config.d_embedding is not None:
            self.projection = nn.Linear(config.d_embedding, config.d_model)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.order = config.applied_encoder_layers
        self.norm = make_norm(config) if config.has_final_norm else nn.Identity()

    def forward(
        self, source: Tensor, source_mask: Tensor | None, token_type: Tensor | None = None
    ) -> Tensor:
        """Encode a source, to [B, S, D].

        Args:
            source: tokens, int64 [B, S], or features, float [B, mel bins, 2 * S]
            source_mask: bool [B, S], True at tokens; ignored for features, where attention
                includes silent frames
            token_type: int64 [B, S]; None: all 0
        """
        if isinstance(self.embedding, AudioEmbedding):
            x, mask = self.embedding(source), None
        else:
            assert source_mask is not None
            position = index = torch.arange(source.shape[1], device=source.device)
            if self.uncounted is not None:
                position = ((source != self.uncounted).long().cumsum(-1) - 1).clamp(min=0)
            x, mask = self.embedding(source, position, token_type), source_mask[:, None, None, :]
            if self.relative_positions is not None:
                mask = self.relative_positions.masked(index[None], mask)
        x = self.projection(x)
        for number in self.order:
            x = self.layers[number](x, mask)
        return self.norm(x)


class Decoder(nn.Module):
    """The decoder: an embedding, and layers of causal self-attention and cross-attention.

    A recurrent decoder has a recurrent unit instead of self-attention.
    """

    def __init__(self, config: ModelConfig, embedding: Embedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.is_recurrent = config.is_recurrent
        self.relative_positions = _relative_positions(config, both_sides=False)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.norm = make_norm(config) if config.has_final_norm else nn.Identity()

    def cross_keys_values(self, encoded: Tensor) -> list[KeysValues]:
        """Project encoder output [B, S, D] to keys and values [B, H, S, Dh] for each layer."""
        return [layer.cross_attention.keys_values(encoded) for layer in self.layers]  # type: ignore[union-attr,operator]

    def forward(
        self,
        token: Tensor,
        position: Tensor,
        source_mask: Tensor | None,
        cross: Sequence[KeysValues] | None,
        memory: Memory,
    ) -> Tensor:
        """Compute the hidden states [B, Q, D] of queries.

        Several rows may belong to one source, such as the beams of a search. Row b belongs to
        source b // (B / G); B is a multiple of G.

        Args:
            token: int64 [B, Q]
            position: int64 [B], the position of each row's first query
            source_mask: bool [G, S]; None without an encoder
            cross: keys and values of the sources for each layer, [G, H, S, Dh]; None without an
                encoder
            memory: keys and values of earlier positions
        """
        queries = token.shape[1]
        positions = position[:, None] + torch.arange(queries, device=token.device)
        self_mask = None
        if not self.is_recurrent:
            self_mask = causal_mask(position, queries, memory.length(queries))
        if self_mask is not None and self.relative_positions is not None:
            self_mask = self.relative_positions.masked(positions, self_mask)
        cross_mask = None if source_mask is None else source_mask[:, None, None, :]
        x = self.embedding(token, positions)
        for index, layer in enumerate(self.layers):
            x = layer(
                x,
                remember=partial(memory.append, index),
                carry=partial(memory.carry, index),
                self_mask=self_mask,
                cross=None if cross is None else cross[index],
                cross_mask=cross_mask,
            )
        return self.norm(x)


class Output(nn.Module):
    """The projection to logits; a tied weight is that of the target embedding (section 3.4)."""

    def __init__(self, weight: Tensor, *, bias: bool) -> None:
        super().__init__()
        self.weight = weight  # a Parameter; Embedding declares its own as Tensor
        self.bias = nn.Parameter(torch.zeros(weight.shape[0])) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Compute logits, [B, Q, D] -> [B, Q, V]."""
        return F.linear(x, self.weight, self.bias)


def target_output(config: ModelConfig, target_tokens: nn.Embedding) -> Output:
    """Make the projection to logits; a tied one shares the token embedding's weight."""
    weight = (
        target_tokens.weight
        if config.tie_target_output
        else nn.Parameter(torch.empty_like(target_tokens.weight))
    )
    return Output(weight, bias=config.logits_bias)


def initialize(model: nn.Module, config: ModelConfig) -> None:
    """Initialize linear maps as in Glorot & Bengio 2010, embeddings by N(0, 1/d_model)."""
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            continue
        if any(part in name for part in ("convolution", "relative_positions", "recurrence.of_")):
            continue  # these keep the initialization of their modules
        if "embedding" in name or name == "output.weight":
            nn.init.normal_(parameter, std=config.d_model**-0.5)
        elif name.endswith(".bilinear"):
            parameter.data[:] = torch.eye(parameter.shape[-1])  # no effect before training
        elif name.endswith(".additive"):
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
        else:
            nn.init.xavier_uniform_(parameter)


def source_embedding(
    config: ModelConfig, target_tokens: nn.Embedding | None
) -> Embedding | AudioEmbedding:
    """Make the embedding of an encoder, which may share the decoder's token embedding."""
    if config.source_vocab_size is None:
        return AudioEmbedding(config)
    tokens = (
        target_tokens
        if target_tokens is not None and config.tie_source_target
        else nn.Embedding(config.source_vocab_size, config.d_embedding or config.d_model)
    )
    return Embedding(config, tokens, config.max_source_positions, config.token_types)


def _positions(config: ModelConfig, positions: int) -> Positions | None:
    match config.positions:
        case "sinusoidal":
            return SinusoidalPositions(positions, config.d_model)
        case "learned" | "learned_and_relative":
            return LearnedPositions(positions, config.d_embedding or config.d_model)
    return None


def _relative_positions(config: ModelConfig, *, both_sides: bool) -> RelativePositions | None:
    if "relative" not in config.positions:
        return None
    return RelativePositions(
        config.num_heads,
        buckets=config.relative_buckets,
        max_distance=config.relative_max_distance,
        both_sides=both_sides,
    )
