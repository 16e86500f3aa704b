"""The encoder alone, with a head for a task (Devlin et al. 2018, BERT)."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from .config import ModelConfig
from .embedding import Embedding
from .head_config import HeadConfig
from .heads import (
    EmbeddingHead,
    MaskedLanguageModelHead,
    SequenceClassificationHead,
    TokenHead,
)
from .stacks import Encoder, initialize, source_embedding

Head = EmbeddingHead | SequenceClassificationHead | TokenHead | MaskedLanguageModelHead


class EncoderModel(nn.Module):
    """An encoder and what stands on it: see `HeadConfig`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config, source_embedding(config, None))
        self.head = self._make_head(config.head or HeadConfig(task="embedding"))
        initialize(self, config)

    def forward(
        self, source: Tensor, source_mask: Tensor, token_type: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """
        Args:
            source: int64 [B, S]
            source_mask: bool [B, S], True at tokens
            token_type: int64 [B, S]; None: all 0

        Returns:
            by the head's task:
            embedding: hidden states [B, S, D] and vectors [B, E]
            sequence-classification: logits [B, labels]
            token-classification: logits [B, S, labels]
            masked-language-model: logits [B, S, V]
            question-answering: logits [B, S, 2], that the answer begins and that it ends there
        """
        hidden = self.encoder(source, source_mask, token_type)
        if isinstance(self.head, EmbeddingHead):
            return hidden, self.head(hidden, source_mask)
        return (self.head(hidden),)

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
