"""The decoder alone, a language model (Radford et al. 2019, GPT-2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from .config import ModelConfig
from .generation import GenerationConfig
from .stacks import Decoder, Memory, NoMemory, initialize, target_output, token_embedding
from .transformer import Source


class LanguageModel(nn.Module):
    """A decoder without cross-attention: it continues the tokens that it is given."""

    def __init__(self, config: ModelConfig, generation: GenerationConfig | None = None) -> None:
        super().__init__()
        self.config = config
        self.generation = generation or GenerationConfig()
        tokens = nn.Embedding(config.target_vocab_size, config.d_model)
        self.decoder = Decoder(config, token_embedding(config, tokens, config.max_target_positions))
        self.output = target_output(config, tokens)
        initialize(self, config)

    def decode(self, token: Tensor, position: Tensor, memory: Memory) -> Tensor:
        """Hidden states [B, Q, D] of queries.

        Args:
            token: int64 [B, Q]
            position: int64 [B], the position of each row's first query
            memory: of earlier positions
        """
        hidden: Tensor = self.decoder(token, position, None, None, memory)
        return hidden

    def forward(self, token: Tensor) -> Tensor:
        """The next-token logits [B, T, V] for each prefix of the tokens [B, T]."""
        start = torch.zeros(token.shape[0], dtype=torch.long, device=token.device)
        logits: Tensor = self.output(self.decode(token, start, NoMemory()))
        return logits

    def prompt(self, source: Source) -> list[int]:
        """What the decoder is given before it chooses: the source itself."""
        assert not isinstance(source, Tensor)
        return [*source, *self.generation.prompt]

    def source_tokens(self, source: Source) -> Sequence[int]:
        """The tokens that rules on a source apply to: there is no source beside the output."""
        return ()

    def target_logits(self, sources: Sequence[Source]) -> Callable[[Tensor], Tensor]:
        """Targets [B, T], prompts included -> logits [B, T, V]."""
        return self
