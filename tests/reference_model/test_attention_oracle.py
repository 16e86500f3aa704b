"""Attention against PyTorch's own, and against hand-computed values."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.reference_model import ModelConfig, scaled_dot_product_attention
from dragoman.reference_model.attention import MultiHeadAttention
from dragoman.reference_model.layers import EncoderLayer

MakeConfig = Callable[..., ModelConfig]


def assert_near(result: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)


def random_mask(*shape: int) -> Tensor:
    """Half of the keys are masked, but never the first: every query must attend to a key."""
    mask = torch.rand(shape) < 0.5
    mask[..., 0] = True
    return mask


def make(d_model: int, heads: int, head_size: int, *, bias: bool = True) -> MultiHeadAttention:
    config = ModelConfig(
        source_vocab_size=3,
        target_vocab_size=3,
        d_model=d_model,
        num_heads=heads,
        d_head=head_size,
        query_bias=bias,
        key_bias=bias,
        value_bias=bias,
        attention_output_bias=bias,
        positions="learned",
    )
    attention = MultiHeadAttention(config)
    for parameter in attention.parameters():
        nn.init.normal_(parameter, std=0.4)
    return attention.requires_grad_(False)


def test_attention_matches_hand_computed_values() -> None:
    query = torch.tensor([[[[2.0, 0.0, 0.0, 0.0]]]])
    key = torch.tensor([[[[math.log(3.0), 0, 0, 0], [0, 5.0, 0, 0], [9.0, 0, 0, 0]]]])
    value = torch.tensor([[[[4.0, 0.0], [0.0, 8.0], [7.0, 7.0]]]])
    mask = torch.tensor([[[[True, True, False]]]])
    # Scores 2 log 3 / sqrt(4) = log 3 and 0, the third is masked: weights 3/4 and 1/4.
    result = scaled_dot_product_attention(query, key, value, mask)
    torch.testing.assert_close(result, torch.tensor([[[[3.0, 2.0]]]]))


@pytest.mark.parametrize(
    ("batch", "heads", "queries", "keys", "head_size"),
    [(1, 1, 1, 1, 1), (1, 8, 1, 33, 64), (7, 3, 5, 9, 20), (2, 5, 13, 13, 7)],
)
def test_attention_equals_pytorch(
    batch: int, heads: int, queries: int, keys: int, head_size: int
) -> None:
    torch.manual_seed(batch)
    query = torch.randn(batch, heads, queries, head_size)
    key = torch.randn(batch, heads, keys, head_size)
    value = torch.randn(batch, heads, keys, head_size)
    for mask in (
        torch.ones(1, 1, 1, keys, dtype=torch.bool),
        random_mask(batch, 1, 1, keys),
        random_mask(batch, 1, queries, keys),
        random_mask(batch, heads, queries, keys),
    ):
        expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        result = scaled_dot_product_attention(query, key, value, mask)
        assert_near(result, expected)


def test_masked_keys_have_no_influence() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, 5, 6) for _ in range(3))
    mask = torch.tensor([True, False, True, True, False])[None, None, None]
    result = scaled_dot_product_attention(query, key, value, mask)
    key[:, :, [1, 4]] = 1e6
    value[:, :, [1, 4]] = -1e6
    assert torch.equal(scaled_dot_product_attention(query, key, value, mask), result)


def test_a_masked_key_stays_masked_for_any_scores_of_the_others() -> None:
    query = torch.ones(1, 1, 1, 1)
    key = torch.tensor([-1e30, -1e30, 5.0])[None, None, :, None]
    value = torch.tensor([2.0, 4.0, 1000.0])[None, None, :, None]
    mask = torch.tensor([True, True, False])[None, None, None]
    assert scaled_dot_product_attention(query, key, value, mask).item() == 3.0


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("batch", "queries", "keys"), [(1, 1, 1), (7, 4, 11), (2, 6, 6)])
def test_multi_head_attention_equals_pytorch(
    batch: int, queries: int, keys: int, bias: bool
) -> None:
    torch.manual_seed(batch)
    ours = make(30, 5, 6, bias=bias)
    theirs = nn.MultiheadAttention(30, 5, bias=bias, batch_first=True).requires_grad_(False)
    projections = (ours.query, ours.key, ours.value)
    theirs.in_proj_weight.copy_(torch.cat([projection.weight for projection in projections]))
    theirs.out_proj.weight.copy_(ours.output.weight)
    if bias:
        theirs.in_proj_bias.copy_(torch.cat([projection.bias for projection in projections]))
        theirs.out_proj.bias.copy_(ours.output.bias)
    x, memory = torch.randn(batch, queries, 30), torch.randn(batch, keys, 30)
    seen = random_mask(batch, keys)
    expected, _ = theirs(x, memory, memory, key_padding_mask=~seen)
    result = ours(x, *ours.keys_values(memory), seen[:, None, None, :])
    assert_near(result, expected)


def test_heads_of_a_size_other_than_d_model_over_heads() -> None:
    """Each head is computed separately, from its rows of the projections; then they are summed."""
    torch.manual_seed(0)
    d_model, heads, head_size = 10, 3, 7
    attention = make(d_model, heads, head_size)
    x, memory = torch.randn(2, 4, d_model), torch.randn(2, 5, d_model)
    mask = random_mask(2, 1, 4, 5)
    key, value = attention.keys_values(memory)
    assert key.shape == value.shape == (2, heads, 5, head_size)
    expected = attention.output.bias.expand(2, 4, d_model).clone()
    for head in range(heads):
        rows = slice(head * head_size, (head + 1) * head_size)
        q = x @ attention.query.weight[rows].T + attention.query.bias[rows]
        k = memory @ attention.key.weight[rows].T + attention.key.bias[rows]
        v = memory @ attention.value.weight[rows].T + attention.value.bias[rows]
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, 0])
        expected += attended @ attention.output.weight[:, rows].T
    result = attention(x, key, value, mask)
    assert_near(result, expected)


def test_the_attention_function_can_be_replaced() -> None:
    attention = make(8, 2, 4)
    attention.attend = lambda query, key, value, mask, scale: torch.zeros_like(query)
    memory = torch.randn(1, 3, 8)
    mask = torch.ones(1, 1, 1, 3, dtype=torch.bool)
    result = attention(torch.randn(1, 2, 8), *attention.keys_values(memory), mask)
    torch.testing.assert_close(result, attention.output.bias.expand(1, 2, 8))


def test_attention_weights_are_dropped_in_training(make_config: MakeConfig) -> None:
    layer = EncoderLayer(make_config(attention_dropout=0.4))
    attention = layer.self_attention
    x, mask = torch.randn(2, 5, 24), torch.ones(2, 1, 1, 5, dtype=torch.bool)
    mask[1, ..., 3:] = False
    query = attention.query(x).unflatten(-1, (3, 8)).transpose(1, 2)
    key, value = attention.keys_values(x)
    weights = torch.softmax((query @ key.mT / 8**0.5).masked_fill(~mask, -torch.inf), dim=-1)
    torch.manual_seed(1)
    kept = F.dropout(torch.ones(2, 3, 5, 5), 0.4)
    assert 0 < (kept == 0).sum() < 75
    heads = (kept * weights) @ value
    torch.manual_seed(1)
    found = attention(x, key, value, mask)
    torch.testing.assert_close(found, attention.output(heads.transpose(1, 2).flatten(2)))
    attention.eval()
    still = attention.output((weights @ value).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x, key, value, mask), still)


@pytest.mark.parametrize("gated", [False, True])
def test_the_inner_layer_of_feed_forward_networks_is_dropped_in_training(
    make_config: MakeConfig, gated: bool
) -> None:
    network = EncoderLayer(
        make_config(feed_forward_dropout=0.4, gated_feed_forward=gated)
    ).feed_forward
    x = torch.randn(2, 5, 24)
    inner = network.inner(x)
    inner = inner.relu() if network.gate is None else network.gate(x).relu() * inner
    torch.manual_seed(1)
    dropped = network.outer(F.dropout(torch.ones_like(inner), 0.4) * inner)
    torch.manual_seed(1)
    torch.testing.assert_close(network(x), dropped)
    torch.testing.assert_close(network.eval()(x), network.outer(inner))
