"""The complete model: figure 1 of "Attention Is All You Need"."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from .config import ModelConfig
from .generation import GenerationConfig
from .layers import KeysValues
from .stacks import (
    Decoder,
    Encoder,
    Memory,
    NoMemory,
    initialize,
    source_embedding,
    target_output,
    token_embedding,
)

Source = Sequence[int] | Tensor
"""Token ids, or audio features [mel bins, frames]."""


class Transformer(nn.Module):
    """The encoder-decoder Transformer that a `ModelConfig` describes."""

    def __init__(self, config: ModelConfig, generation: GenerationConfig | None = None) -> None:
        super().__init__()
        self.config = config
        self.generation = generation or GenerationConfig()
        target_tokens = nn.Embedding(config.target_vocab_size, config.d_model)
        self.encoder = Encoder(config, source_embedding(config, target_tokens))
        self.decoder = Decoder(
            config, token_embedding(config, target_tokens, config.max_target_positions)
        )
        self.output = target_output(config, target_tokens)
        initialize(self, config)

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

    def prompt(self, source: Source) -> list[int]:
        """What the decoder is given before it chooses, whatever the source."""
        return [self.config.start_token_id, *self.generation.prompt]

    def source_tokens(self, source: Source) -> Sequence[int]:
        """The tokens that rules on a source apply to; none of audio."""
        return () if isinstance(source, Tensor) else source

    def target_logits(self, sources: Sequence[Source]) -> Callable[[Tensor], Tensor]:
        """Targets [B, T], prompts included, of which the sources have equal shares -> logits
        [B, T, V]. Sources are encoded once.
        """
        source, mask = as_batch(sources, self.config)
        cross = self.encode(source, mask)

        def logits(target: Tensor) -> Tensor:
            start = torch.zeros(target.shape[0], dtype=torch.long)
            return self.decode(target, start, mask, cross, NoMemory())

        return logits


def pad(rows: Sequence[Sequence[int]], pad_token_id: int) -> tuple[Tensor, Tensor]:
    """Ragged token lists -> tokens int64 [B, S] and mask bool [B, S], True at tokens."""
    length = max(len(row) for row in rows)
    tokens = torch.full((len(rows), length), pad_token_id, dtype=torch.long)
    mask = torch.zeros((len(rows), length), dtype=torch.bool)
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = torch.tensor(row, dtype=torch.long)
        mask[index, : len(row)] = True
    return tokens, mask


def as_batch(sources: Sequence[Source], config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Sources -> the arguments of `Transformer.encode`: tokens or features, and mask [B, S]."""
    features = [source for source in sources if isinstance(source, Tensor)]
    if features:
        mask = torch.ones((len(features), config.max_source_positions), dtype=torch.bool)
        return torch.stack(features), mask
    return pad([s for s in sources if not isinstance(s, Tensor)], config.pad_token_id)
