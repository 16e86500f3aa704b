"""Models of the table that are an encoder or a decoder alone: one layer of BERT or of GPT-2."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from .exported_model import ModelAndInputs
from .models import (
    BATCH,
    FEED_FORWARD,
    HEADS,
    PAST,
    SOURCE,
    VOCABULARY,
    WIDTH,
    AttentionKind,
    source_tokens,
)

AloneFamily = Literal["bert", "gpt2"]


class Alone(nn.Module):
    """A Hugging Face model of one stack: from tokens to hidden states or logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> Any:
        return self.model(input_ids=ids, attention_mask=mask)[0]


class LanguageModelStep(nn.Module):
    """GPT-2 from one token, with past keys and values, to logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor, key: Tensor, value: Tensor) -> Any:
        from transformers import DynamicCache

        cache = DynamicCache()
        cache.update(key, value, 0)
        return self.model(
            input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True
        ).logits


def alone(family: AloneFamily, kind: AttentionKind) -> ModelAndInputs:
    """A whole model without a cache."""
    return Alone(_hugging_face(family, kind)), source_tokens()


def language_model_step(kind: AttentionKind) -> ModelAndInputs:
    """GPT-2 with a cache."""
    shape = (BATCH, HEADS, PAST, WIDTH // HEADS)
    return LanguageModelStep(_hugging_face("gpt2", kind)), {
        "ids": torch.randint(2, VOCABULARY, (BATCH, 1)),
        "mask": torch.ones(BATCH, PAST + 1, dtype=torch.long),
        "key": torch.randn(shape),
        "value": torch.randn(shape),
    }


def _hugging_face(family: AloneFamily, kind: AttentionKind) -> Any:
    import transformers

    if family == "bert":
        config: Any = transformers.BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            num_hidden_layers=1,
            num_attention_heads=HEADS,
            intermediate_size=FEED_FORWARD,
            max_position_embeddings=SOURCE + 1,
        )
        config._attn_implementation = kind
        return transformers.BertModel(config, add_pooling_layer=False)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=WIDTH,
        n_layer=1,
        n_head=HEADS,
        n_inner=FEED_FORWARD,
        n_positions=SOURCE + 1,
    )
    config._attn_implementation = kind
    return transformers.GPT2LMHeadModel(config)
