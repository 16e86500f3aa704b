"""The models: encoder-decoder, decoder-only and encoder-only."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from .config import ModelConfig
from .generation import GenerationConfig
from .head_config import DenseActivation, HeadConfig, Pooling
from .layers import ACTIVATIONS, KeysValues, LayerNorm, make_norm
from .stacks import (
    Decoder,
    Embedding,
    Encoder,
    Memory,
    NoMemory,
    initialize,
    source_embedding,
    target_output,
)

Source = Sequence[int] | Tensor
"""Token ids, or audio features [mel bins, frames]."""

HiddenStates = Callable[[Tensor, Tensor, Memory], Tensor]
"""Tokens int64 [B, Q], the position int64 [B] of the first one of each row, and keys and values of
earlier positions -> hidden states [B, Q, D]."""


class Transformer(nn.Module):
    """The encoder-decoder Transformer: figure 1 of "Attention Is All You Need"."""

    def __init__(self, config: ModelConfig, generation: GenerationConfig | None = None) -> None:
        super().__init__()
        self.config = config
        self.generation = generation or GenerationConfig()
        target_tokens = nn.Embedding(config.target_vocab_size, config.d_model)
        self.encoder = Encoder(config, source_embedding(config, target_tokens))
        embedding = Embedding(config, target_tokens, config.max_target_positions)
        self.decoder = Decoder(config, embedding)
        self.output = target_output(config, target_tokens)
        initialize(self, config)

    def encode(self, source: Tensor, source_mask: Tensor | None) -> list[KeysValues]:
        """Compute the keys and values of cross-attention [B, H, S, Dh] for each decoder layer.

        Args:
            source: tokens, int64 [B, S], or features, float [B, mel bins, 2 * S]
            source_mask: bool [B, S], True at tokens; None for features
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
        """Compute the logits [B, Q, V] of queries; takes the arguments of `Decoder.forward`."""
        logits: Tensor = self.output(self.decoder(token, position, source_mask, cross, memory))
        return logits

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        """Compute the next-token logits [B, T, V] of each prefix of a target [B, T]."""
        start = torch.zeros(target.shape[0], dtype=torch.long, device=target.device)
        return self.decode(target, start, source_mask, self.encode(source, source_mask), NoMemory())

    def shorten_window(self, positions: int) -> None:
        """Keep only the first source positions of a speech model, to read less audio at once."""
        stored = self.encoder.embedding.positions
        assert stored is not None
        kept = stored.table.detach()[:positions].clone()
        is_weight = isinstance(stored.table, nn.Parameter)
        stored.table = nn.Parameter(kept) if is_weight else kept
        self.config = dataclasses.replace(self.config, max_source_positions=positions)

    def prompt(self, source: Source) -> list[int]:
        """Return the tokens before the first new one, the same for every source."""
        return [self.config.start_token_id, *self.generation.prompt]

    def source_tokens(self, source: Source) -> Sequence[int]:
        """Return the tokens that rules on a source apply to; none for audio."""
        return () if isinstance(source, Tensor) else source

    def decoding(self, sources: Sequence[Source]) -> HiddenStates:
        """Encode sources once; return what computes hidden states of their targets."""
        source, mask = as_batch(sources, self.config)
        cross = self.encode(source, mask)

        def hidden_states(token: Tensor, position: Tensor, memory: Memory) -> Tensor:
            hidden: Tensor = self.decoder(token, position, mask, cross, memory)
            return hidden

        return hidden_states


def pad(rows: Sequence[Sequence[int]], pad_token_id: int) -> tuple[Tensor, Tensor]:
    """Pad token lists to tokens int64 [B, S], with a mask bool [B, S] that is True at tokens."""
    tokens = [torch.tensor(row, dtype=torch.long) for row in rows]
    mask = [torch.ones(len(row), dtype=torch.bool) for row in rows]
    padded = pad_sequence(tokens, batch_first=True, padding_value=pad_token_id)
    return padded, pad_sequence(mask, batch_first=True)


def as_batch(sources: Sequence[Source], config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Make the arguments of `Transformer.encode`: tokens or features, and a mask [B, S]."""
    features = [source for source in sources if isinstance(source, Tensor)]
    if features:
        mask = torch.ones((len(features), config.max_source_positions), dtype=torch.bool)
        return torch.stack(features), mask
    return pad([s for s in sources if not isinstance(s, Tensor)], config.pad_token_id)


class LanguageModel(nn.Module):
    """The decoder-only model, which continues a text (Radford et al. 2019, GPT-2)."""

    def __init__(self, config: ModelConfig, generation: GenerationConfig | None = None) -> None:
        super().__init__()
        self.config = config
        self.generation = generation or GenerationConfig()
        tokens = nn.Embedding(config.target_vocab_size, config.d_model)
        self.decoder = Decoder(config, Embedding(config, tokens, config.max_target_positions))
        self.output = target_output(config, tokens)
        initialize(self, config)

    def decode(self, token: Tensor, position: Tensor, memory: Memory) -> Tensor:
        """Compute the hidden states [B, Q, D] of queries; see `Decoder.forward`."""
        hidden: Tensor = self.decoder(token, position, None, None, memory)
        return hidden

    def forward(self, token: Tensor) -> Tensor:
        """Compute the next-token logits [B, T, V] of each prefix of tokens [B, T]."""
        start = torch.zeros(token.shape[0], dtype=torch.long, device=token.device)
        logits: Tensor = self.output(self.decode(token, start, NoMemory()))
        return logits

    def prompt(self, source: Source) -> list[int]:
        """Return the tokens before the first new one: the source, and the prompt."""
        assert not isinstance(source, Tensor)
        return [*source, *self.generation.prompt]

    def source_tokens(self, source: Source) -> Sequence[int]:
        """Return none: the source is a part of the target."""
        return ()

    def decoding(self, sources: Sequence[Source]) -> HiddenStates:
        """Return `decode`."""
        return self.decode


class Dense(nn.Module):
    """A linear layer and an activation, f(x W + b)."""

    def __init__(
        self, inputs: int, outputs: int, activation: DenseActivation, *, bias: bool = True
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=bias)
        self.activation = nn.Identity() if activation == "identity" else ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer, [..., inputs] -> [..., outputs]."""
        return self.activation(self.linear(x))


def _dense(head: HeadConfig, d_model: int) -> Dense | nn.Identity:
    if not head.dense_size:
        return nn.Identity()
    return Dense(d_model, head.dense_size, head.dense_activation)


class Normalize(nn.Module):
    """Division by the Euclidean length."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x, [B, E] -> [B, E]."""
        return F.normalize(x, dim=-1)


EMBEDDING_NORM_EPSILON = 1e-5
"""The constant of sentence-transformers' module LayerNorm, which is PyTorch's default."""


class EmbeddingHead(nn.Module):
    """Pooling, then dense layers and norms (Reimers & Gurevych 2019, section 3)."""

    def __init__(self, config: ModelConfig, head: HeadConfig) -> None:
        super().__init__()
        self.pooling, self.kept = head.pooling, head.truncate_dim or None
        self.after_pooling, size = nn.Sequential(), head.pooled_size(config.d_model)
        for layer in head.after_pooling:
            match layer.kind:
                case "dense":
                    self.after_pooling.append(
                        Dense(size, layer.size, layer.activation, bias=layer.bias)
                    )
                    size = layer.size
                case "layer_norm":
                    norm = LayerNorm(size, gain=True, bias=True, epsilon=EMBEDDING_NORM_EPSILON)
                    self.after_pooling.append(norm)
                case "normalize":
                    self.after_pooling.append(Normalize())

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Pool hidden states [B, S, D], with a mask bool [B, S], to embeddings [B, E]."""
        pooled = [self._pooled(mode, hidden, mask) for mode in self.pooling]
        vector = self.after_pooling(pooled[0] if len(pooled) == 1 else torch.cat(pooled, -1))
        return vector if self.kept is None else vector[:, : self.kept]

    def _pooled(self, mode: Pooling, hidden: Tensor, mask: Tensor) -> Tensor:
        match mode:
            case "cls":
                return hidden[:, 0]
            case "max":
                return hidden.masked_fill(~mask[..., None], -math.inf).amax(1)
            case "lasttoken":
                last = mask.sum(-1)[:, None, None] - 1
                return hidden.gather(1, last.expand(-1, -1, hidden.shape[-1]))[:, 0]
        # As a product, ONNX Runtime adds tokens in the same order whatever the padding.
        weight = mask[:, None].to(hidden.dtype)
        if mode == "weightedmean":  # later tokens count more (Muennighoff 2022)
            weight = weight * torch.arange(1, hidden.shape[1] + 1, device=hidden.device)
        count = weight.sum(-1)
        if mode == "mean_sqrt_len_tokens":
            count = count.sqrt()
        return (weight @ hidden)[:, 0] / count


class SequenceClassificationHead(nn.Module):
    """A dense layer on the first hidden state, then a linear map."""

    def __init__(self, config: ModelConfig, head: HeadConfig) -> None:
        super().__init__()
        self.dense = _dense(head, config.d_model)
        self.output = nn.Linear(config.d_model, len(head.labels))

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute logits, [B, S, D] -> [B, labels]."""
        return self.output(self.dense(hidden[:, 0]))


class TokenHead(nn.Module):
    """A linear map of each token's hidden state."""

    def __init__(self, config: ModelConfig, outputs: int) -> None:
        super().__init__()
        self.output = nn.Linear(config.d_model, outputs)

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute logits, [B, S, D] -> [B, S, outputs]."""
        return self.output(hidden)


class MaskedLanguageModelHead(nn.Module):
    """A dense layer and LayerNorm, then the token embedding's transpose, and a bias."""

    def __init__(self, config: ModelConfig, head: HeadConfig, table: Tensor) -> None:
        super().__init__()
        self.dense = _dense(head, config.d_model)
        self.norm = make_norm(config, table.shape[1])
        self.weight = table
        self.bias = nn.Parameter(torch.zeros(table.shape[0]))

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute logits, [B, S, D] -> [B, S, V]."""
        return F.linear(self.norm(self.dense(hidden)), self.weight, self.bias)


Head = EmbeddingHead | SequenceClassificationHead | TokenHead | MaskedLanguageModelHead


class EncoderModel(nn.Module):
    """The encoder-only model, an encoder with a head: see `HeadConfig` (Devlin et al. 2018).

    To classify, a decoder may read the source once more, all positions at once (Lewis et al. 2020,
    section 3.1, BART).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config, source_embedding(config, None))
        self.decoder = self._make_decoder() if config.rereads_source else None
        self.head = self._make_head(config.head or HeadConfig(task="embedding"))
        initialize(self, config)

    def forward(
        self, source: Tensor, source_mask: Tensor, token_type: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Compute the outputs of the head.

        Args:
            source: int64 [B, S]
            source_mask: bool [B, S], True at tokens
            token_type: int64 [B, S]; None: all 0

        Returns:
            hidden states [B, S, D] and embeddings [B, E]; logits [B, labels] of
            sequence-classification; or logits of each token: [B, S, labels], [B, S, V], or
            [B, S, 2] for the start and the end of an answer
        """
        hidden = self.encoder(source, source_mask, token_type)
        if isinstance(self.head, EmbeddingHead):
            return hidden, self.head(hidden, source_mask)
        if self.decoder is not None:
            hidden = self._at_last_end(self.decoder, hidden, source, source_mask)
        return (self.head(hidden),)

    def _at_last_end(
        self, decoder: Decoder, encoded: Tensor, source: Tensor, source_mask: Tensor
    ) -> Tensor:
        """Decode the source itself, and keep the hidden state [B, 1, D] of its last end token.

        The decoder reads the start token and all tokens of the source but the last one. In a row
        without an end token, the last token takes its place.
        """
        start = torch.full_like(source[:, :1], self.config.start_token_id)
        hidden: Tensor = decoder(
            torch.cat([start, source[:, :-1]], 1),
            torch.zeros_like(source[:, 0]),
            source_mask,
            decoder.cross_keys_values(encoded),
            NoMemory(),
        )
        length = source.shape[1]
        is_end = (source == self.config.end_token_id).long()
        rank = (torch.arange(length, device=source.device) + length * is_end) * source_mask
        last = rank.amax(-1)
        last = torch.where(last <= length - 1, last, last - length)
        return hidden.gather(1, last[:, None, None].expand(-1, -1, hidden.shape[-1]))

    def _make_decoder(self) -> Decoder:
        tokens = cast(Embedding, self.encoder.embedding).tokens
        if not self.config.tie_source_target:
            tokens = nn.Embedding(tokens.num_embeddings, tokens.embedding_dim)
        embedding = Embedding(self.config, tokens, self.config.max_source_positions)
        return Decoder(self.config, embedding)

    def _make_head(self, head: HeadConfig) -> Head:
        match head.task:
            case "embedding":
                return EmbeddingHead(self.config, head)
            case "sequence-classification":
                return SequenceClassificationHead(self.config, head)
            case "masked-language-model":
                table = cast(Embedding, self.encoder.embedding).tokens.weight
                return MaskedLanguageModelHead(self.config, head, table)
            case "token-classification":
                return TokenHead(self.config, len(head.labels))
            case "question-answering":
                return TokenHead(self.config, 2)


AutoregressiveModel = Transformer | LanguageModel
"""Models that generate tokens one after another."""

ReferenceModel = AutoregressiveModel | EncoderModel


def make_model(config: ModelConfig, generation: GenerationConfig | None = None) -> ReferenceModel:
    """Make the model that a configuration describes, with random weights."""
    if not config.has_decoder:
        return EncoderModel(config)
    if not config.has_encoder:
        return LanguageModel(config, generation)
    return Transformer(config, generation)
