"""The complete model against torch.nn.Transformer with the same weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dragoman.reference_model import Transformer, pad
from dragoman.reference_model.attention import MultiHeadAttention
from dragoman.reference_model.layers import FeedForward, LayerNorm

MakeModel = Callable[..., Transformer]


def copy_norm(ours: LayerNorm, theirs: nn.LayerNorm) -> None:
    assert ours.gain is not None and ours.bias is not None
    theirs.weight.copy_(ours.gain)
    theirs.bias.copy_(ours.bias)


def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    projections = (ours.query, ours.key, ours.value)
    theirs.in_proj_weight.copy_(torch.cat([projection.weight for projection in projections]))
    theirs.in_proj_bias.copy_(torch.cat([projection.bias for projection in projections]))
    theirs.out_proj.weight.copy_(ours.output.weight)
    theirs.out_proj.bias.copy_(ours.output.bias)


def copy_feed_forward(ours: FeedForward, theirs: Any) -> None:
    theirs.linear1.load_state_dict(ours.inner.state_dict())
    theirs.linear2.load_state_dict(ours.outer.state_dict())


def build_oracle(ours: Transformer) -> nn.Transformer:
    config = ours.config
    options: dict[str, Any] = {
        "d_model": config.d_model,
        "nhead": config.num_heads,
        "dim_feedforward": config.d_ff,
        "dropout": 0.0,
        "activation": config.activation,
        "layer_norm_eps": config.norm_epsilon,
        "batch_first": True,
        "norm_first": config.norm_order == "pre",
    }
    # PyTorch warns that it cannot use nested tensors here unless they are disabled.
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**options),
        config.encoder_layers,
        nn.LayerNorm(config.d_model, config.norm_epsilon),
        enable_nested_tensor=False,
    )
    theirs = nn.Transformer(
        **options, num_decoder_layers=config.decoder_layers, custom_encoder=encoder
    ).requires_grad_(False)
    pairs: list[tuple[Any, Any]] = [*zip(ours.encoder.layers, theirs.encoder.layers, strict=True)]
    for mine, its in pairs:
        copy_attention(mine.self_attention, its.self_attn)
        copy_norm(mine.self_attention_residual.norm, its.norm1)
        copy_feed_forward(mine.feed_forward, its)
        copy_norm(mine.feed_forward_residual.norm, its.norm2)
    pairs = [*zip(ours.decoder.layers, theirs.decoder.layers, strict=True)]
    for mine, its in pairs:
        copy_attention(mine.self_attention, its.self_attn)
        copy_norm(mine.self_attention_residual.norm, its.norm1)
        copy_attention(mine.cross_attention, its.multihead_attn)
        copy_norm(mine.cross_attention_residual.norm, its.norm2)
        copy_feed_forward(mine.feed_forward, its)
        copy_norm(mine.feed_forward_residual.norm, its.norm3)
    stacks: list[tuple[Any, Any]] = [
        (ours.encoder, theirs.encoder),
        (ours.decoder, theirs.decoder),
    ]
    for my_stack, its_stack in stacks:
        if config.norm_order == "pre":
            copy_norm(my_stack.norm, its_stack.norm)
        else:
            its_stack.norm = None
    # Training mode without dropout: in evaluation mode, PyTorch computes in another way.
    return theirs.train()


def embed(weight: Tensor, token: Tensor) -> Tensor:
    """Sections 3.4 and 3.5 of the paper, element by element."""
    d_model = weight.shape[1]
    table = [
        [
            math.sin(p / 10000 ** (i / d_model))
            if i % 2 == 0
            else math.cos(p / 10000 ** ((i - 1) / d_model))
            for i in range(d_model)
        ]
        for p in range(token.shape[1])
    ]
    return weight[token] * math.sqrt(d_model) + torch.tensor(table)


@torch.no_grad()
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_order", ["post", "pre"])
@pytest.mark.parametrize(
    ("lengths", "target_length"), [([1], 1), ([9], 5), ([4, 1, 16, 7, 2, 16, 3], 12)]
)
def test_logits_equal_those_of_pytorch(
    make_model: MakeModel,
    norm_order: str,
    activation: str,
    lengths: list[int],
    target_length: int,
) -> None:
    ours = make_model(
        norm_order=norm_order, activation=activation, encoder_layers=3, norm_epsilon=1e-3
    )
    theirs = build_oracle(ours)
    sources = [torch.randint(0, 17, (length,)).tolist() for length in lengths]
    source, source_mask = pad(sources, 0)
    target = torch.randint(0, 19, (len(lengths), target_length))
    hidden = theirs(
        embed(ours.get_parameter("encoder.embedding.tokens.weight"), source),
        embed(ours.decoder.embedding.tokens.weight, target),
        tgt_mask=torch.ones(target_length, target_length, dtype=torch.bool).triu(1),
        src_key_padding_mask=~source_mask,
        memory_key_padding_mask=~source_mask,
    )
    expected = hidden @ ours.decoder.embedding.tokens.weight.T
    result = ours(source, source_mask, target)
    assert result.shape == (len(lengths), target_length, 19)
    assert expected.std() > 0.1
    torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_encoder_output_equals_that_of_pytorch(make_model: MakeModel) -> None:
    ours = make_model(norm_order="pre")
    source, mask = pad([[3, 4, 5], [6], [7, 8, 9, 10, 11]], 0)
    embedded = embed(ours.get_parameter("encoder.embedding.tokens.weight"), source)
    expected = build_oracle(ours).encoder(embedded, src_key_padding_mask=~mask)
    result = ours.encoder(source, mask)
    torch.testing.assert_close(result[mask], expected[mask], atol=1e-5, rtol=1e-5)
