"""The models of the table, with one encoder layer, one decoder layer, or both."""

from __future__ import annotations

import math
import warnings
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from docs.tools.fusion_table.exported_model import ModelAndInputs

WIDTH, HEADS, FEED_FORWARD, VOCABULARY = 32, 4, 48, 61
BATCH, SOURCE, TARGET, PAST = 2, 7, 5, 3

Family = Literal["marian", "bart", "t5"]
AttentionKind = Literal["eager", "sdpa"]
"""Hugging Face's `attn_implementation`."""


class EncoderDecoder(nn.Module):
    """A Hugging Face encoder-decoder: from source and target tokens to logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor, target: Tensor) -> Any:
        """Compute the outputs."""
        return self.model(
            input_ids=ids, attention_mask=mask, decoder_input_ids=target, use_cache=False
        ).logits


class DecoderStep(nn.Module):
    """The decoder of a Hugging Face model: from one token, with past keys and values, to logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, target: Tensor, mask: Tensor, hidden: Tensor, *past: Tensor) -> Any:
        """Compute the outputs."""
        from transformers import DynamicCache, EncoderDecoderCache

        self_attention, cross_attention = DynamicCache(), DynamicCache()
        self_attention.update(past[0], past[1], 0)
        cross_attention.update(past[2], past[3], 0)
        cache = EncoderDecoderCache(self_attention, cross_attention)
        cache.is_updated = {0: True}
        return self.model(
            encoder_outputs=(hidden,),
            attention_mask=mask,
            decoder_input_ids=target,
            past_key_values=cache,
            use_cache=True,
        ).logits


def hugging_face(family: Family, kind: AttentionKind) -> Any:
    """Make a Hugging Face encoder-decoder with one layer per stack."""
    import transformers

    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "d_model": WIDTH,
        "decoder_start_token_id": 0,
    }
    if family == "t5":
        config: Any = transformers.T5Config(
            **sizes,
            d_kv=WIDTH // HEADS,
            num_heads=HEADS,
            num_layers=1,
            d_ff=FEED_FORWARD,
            feed_forward_proj="gated-gelu",
        )
        make: Any = transformers.T5ForConditionalGeneration
    else:
        marian = family == "marian"
        make = transformers.MarianMTModel if marian else transformers.BartForConditionalGeneration
        config = (transformers.MarianConfig if marian else transformers.BartConfig)(
            **sizes,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=HEADS,
            decoder_attention_heads=HEADS,
            encoder_ffn_dim=FEED_FORWARD,
            decoder_ffn_dim=FEED_FORWARD,
            max_position_embeddings=24,
            pad_token_id=0,
            bos_token_id=2,
            eos_token_id=1,
            forced_eos_token_id=None,
            activation_function="gelu",
        )
    config._attn_implementation = kind
    return make(config)


def source_tokens() -> dict[str, Tensor]:
    """Make random source tokens and their mask."""
    mask = torch.ones(BATCH, SOURCE, dtype=torch.long)
    mask[-1, -2:] = 0
    return {"ids": torch.randint(2, VOCABULARY, (BATCH, SOURCE)), "mask": mask}


def encoder_decoder(family: Family, kind: AttentionKind) -> ModelAndInputs:
    """Make a Hugging Face model without a cache."""
    target = torch.randint(2, VOCABULARY, (BATCH, TARGET))
    return EncoderDecoder(hugging_face(family, kind)), {**source_tokens(), "target": target}


def decoder_step(family: Family, kind: AttentionKind) -> ModelAndInputs:
    """Make the decoder of a Hugging Face model with a cache."""
    lengths = {"self_key": PAST, "self_value": PAST, "cross_key": SOURCE, "cross_value": SOURCE}
    past = {
        f"past_{name}": torch.randn(BATCH, HEADS, length, WIDTH // HEADS)
        for name, length in lengths.items()
    }
    return DecoderStep(hugging_face(family, kind)), {
        "target": torch.randint(2, VOCABULARY, (BATCH, 1)),
        "mask": source_tokens()["mask"],
        "hidden": torch.randn(BATCH, SOURCE, WIDTH),
        **past,
    }


class TorchTransformer(nn.Module):
    """torch.nn.Transformer, with padding and causal masks."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Transformer(
            WIDTH, HEADS, 1, 1, FEED_FORWARD, activation="gelu", batch_first=True, norm_first=True
        )

    def forward(self, ids: Tensor, target: Tensor, padding: Tensor) -> Any:
        """Compute the outputs."""
        length = target.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).triu(1)
        return self.model(
            ids,
            target,
            tgt_mask=causal,
            tgt_is_causal=False,  # None would make it inspect the mask's values
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )


def torch_transformer() -> ModelAndInputs:
    """Make a `torch.nn.Transformer` with its inputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = TorchTransformer()
    return model, {
        "ids": torch.randn(BATCH, SOURCE, WIDTH),
        "target": torch.randn(BATCH, TARGET, WIDTH),
        "padding": source_tokens()["mask"] == 0,
    }


class PlainLayer(nn.Module):
    """An encoder layer as in tutorials, with masked_fill, softmax and matmul."""

    def __init__(self) -> None:
        super().__init__()
        self.projections = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.up, self.down = nn.Linear(WIDTH, FEED_FORWARD), nn.Linear(FEED_FORWARD, WIDTH)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Compute the outputs."""
        q, k, v = (
            projection(hidden).view(-1, hidden.shape[1], HEADS, WIDTH // HEADS).transpose(1, 2)
            for projection in list(self.projections)[:3]
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(WIDTH // HEADS)
        scores = scores.masked_fill(mask[:, None, None, :] == 0, -1e9)
        context = scores.softmax(-1) @ v
        context = context.transpose(1, 2).reshape(hidden.shape)
        hidden = self.norms[0](hidden + self.projections[3](context))
        output: Tensor = self.norms[1](hidden + self.down(F.gelu(self.up(hidden))))
        return output


def plain_layer() -> ModelAndInputs:
    """Make an encoder layer as in tutorials, with its inputs."""
    return PlainLayer(), {
        "hidden": torch.randn(BATCH, SOURCE, WIDTH),
        "mask": source_tokens()["mask"],
    }


OneStackFamily = Literal["bert", "gpt2"]


class OneStack(nn.Module):
    """A Hugging Face model of one stack: from tokens to hidden states or logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> Any:
        """Compute the outputs."""
        return self.model(input_ids=ids, attention_mask=mask)[0]


class LanguageModelStep(nn.Module):
    """GPT-2 from one token, with past keys and values, to logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor, key: Tensor, value: Tensor) -> Any:
        """Compute the outputs."""
        from transformers import DynamicCache

        cache = DynamicCache()
        cache.update(key, value, 0)
        return self.model(
            input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True
        ).logits


def one_stack(family: OneStackFamily, kind: AttentionKind) -> ModelAndInputs:
    """Make a model of one stack without a cache."""
    return OneStack(one_stack_model(family, kind)), source_tokens()


def language_model_step(kind: AttentionKind) -> ModelAndInputs:
    """Make GPT-2 with a cache."""
    shape = (BATCH, HEADS, PAST, WIDTH // HEADS)
    return LanguageModelStep(one_stack_model("gpt2", kind)), {
        "ids": torch.randint(2, VOCABULARY, (BATCH, 1)),
        "mask": torch.ones(BATCH, PAST + 1, dtype=torch.long),
        "key": torch.randn(shape),
        "value": torch.randn(shape),
    }


def one_stack_model(family: OneStackFamily, kind: AttentionKind) -> Any:
    """Make a Hugging Face model of one stack with one layer."""
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
