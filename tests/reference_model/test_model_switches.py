"""Each option of the configuration changes what it should and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dragoman.reference_model import Transformer
from dragoman.reference_model.layers import ACTIVATIONS, LayerNorm

MakeModel = Callable[..., Transformer]

EVERYTHING = {"logits_bias": True, "embedding_norm": True, "norm_order": "pre"}

SUFFIXES: dict[str, str | tuple[str, ...]] = {
    "query_bias": "attention.query.bias",
    "key_bias": "attention.key.bias",
    "value_bias": "attention.value.bias",
    "attention_output_bias": "attention.output.bias",
    "feed_forward_bias": ("inner.bias", "outer.bias"),
    "logits_bias": "output.bias",
    "norm_gain": "norm.gain",
    "norm_bias": "norm.bias",
}
# 2 encoder and 2 decoder layers have 6 attentions, 4 feed-forwards, 10 norms in layers; the two
# stacks and the two embeddings have one norm each.
COUNTS = {
    "query_bias": 6,
    "key_bias": 6,
    "value_bias": 6,
    "attention_output_bias": 6,
    "feed_forward_bias": 8,
    "logits_bias": 1,
    "norm_gain": 14,
    "norm_bias": 14,
}


def names(model: Transformer) -> set[str]:
    return {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("switch", SUFFIXES)
def test_a_switched_off_parameter_does_not_exist(make_model: MakeModel, switch: str) -> None:
    complete = names(make_model(**EVERYTHING))
    removed = complete - names(make_model(**{**EVERYTHING, switch: False}))
    assert len(removed) == COUNTS[switch]
    if switch == "logits_bias":
        assert removed == {"output.bias"}
    assert all(name.endswith(SUFFIXES[switch]) for name in removed)


@torch.no_grad()
@pytest.mark.parametrize("switch", [name for name in SUFFIXES if name != "norm_gain"])
def test_no_bias_is_a_bias_of_zero(make_model: MakeModel, switch: str) -> None:
    """A model with all weights gives the same logits if its additional weights are zero."""
    without = make_model(**{**EVERYTHING, switch: False})
    check_equal_when_filled(make_model, without, fill=0.0)


@torch.no_grad()
def test_no_gain_is_a_gain_of_one(make_model: MakeModel) -> None:
    without = make_model(**{**EVERYTHING, "norm_gain": False})
    check_equal_when_filled(make_model, without, fill=1.0)


def check_equal_when_filled(make_model: MakeModel, without: Transformer, *, fill: float) -> None:
    complete = make_model(**EVERYTHING)
    known = dict(without.named_parameters())
    for name, parameter in complete.named_parameters():
        parameter.copy_(known[name] if name in known else torch.full_like(parameter, fill))
    source = torch.tensor([[3, 4, 5]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    target = torch.tensor([[1, 7]])
    torch.testing.assert_close(
        without(source, mask, target), complete(source, mask, target), atol=1e-5, rtol=1e-5
    )


def test_post_norm_has_no_norm_after_the_stacks(make_model: MakeModel) -> None:
    pre, post = names(make_model(norm_order="pre")), names(make_model(norm_order="post"))
    assert pre - post == {
        "encoder.norm.gain",
        "encoder.norm.bias",
        "decoder.norm.gain",
        "decoder.norm.bias",
    }
    assert post < pre


@torch.no_grad()
@pytest.mark.parametrize(("scale", "factor"), [(True, math.sqrt(24)), (False, 1.0)])
def test_scale_embedding(make_model: MakeModel, scale: bool, factor: float) -> None:
    embedding = make_model(scale_embedding=scale).decoder.embedding
    token, zero = torch.tensor([[3, 9]]), torch.tensor([0, 0])
    at_zero = torch.tensor([0.0, 1.0] * 12)  # the sinusoids of position 0
    expected = embedding.tokens.weight[token] * factor + at_zero
    torch.testing.assert_close(embedding(token, zero), expected)


@torch.no_grad()
def test_embedding_norm_is_a_layer_norm_of_the_sum(make_model: MakeModel) -> None:
    embedding = make_model(embedding_norm=True).encoder.embedding
    token = torch.tensor([[3, 9, 9]])
    norm = embedding.norm
    assert isinstance(norm, LayerNorm)
    embedding.norm = None
    plain = embedding(token, torch.arange(3))
    embedding.norm = norm
    result = embedding(token, torch.arange(3))
    torch.testing.assert_close(result, nn.functional.layer_norm(plain, (24,), norm.gain, norm.bias))


def test_layer_norm_matches_hand_computed_values() -> None:
    norm = LayerNorm(3, gain=True, bias=True, epsilon=0.5)
    assert norm.gain is not None and norm.bias is not None
    with torch.no_grad():
        norm.gain.copy_(torch.tensor([1.0, 2.0, 3.0]))
        norm.bias.copy_(torch.tensor([0.0, 0.0, 10.0]))
    # Mean 2, variance (9 + 0 + 9) / 3 = 6: divided by sqrt(6.5).
    root = math.sqrt(6.5)
    expected = torch.tensor([[-3 / root, 0.0, 10 + 9 / root]])
    torch.testing.assert_close(norm(torch.tensor([[-1.0, 2.0, 5.0]])), expected)


@pytest.mark.parametrize(
    ("name", "at_one", "at_minus_two"),
    [
        ("relu", 1.0, 0.0),
        ("gelu", 0.84134475, -0.04550026),  # x * Phi(x)
        ("gelu_tanh", 0.84119199, -0.04540231),
        ("quick_gelu", 0.84579577, -0.06434138),  # x / (1 + e^-1.702x)
        ("silu", 0.73105858, -0.23840584),  # x / (1 + e^-x)
        ("tanh", 0.76159416, -0.96402758),
    ],
)
def test_activations_match_hand_computed_values(
    name: str, at_one: float, at_minus_two: float
) -> None:
    activations: dict[str, Callable[[Tensor], Tensor]] = {str(k): f for k, f in ACTIVATIONS.items()}
    result = activations[name](torch.tensor([1.0, -2.0]))
    torch.testing.assert_close(result, torch.tensor([at_one, at_minus_two]), atol=1e-6, rtol=0)


def test_dropout_acts_in_training_only(make_model: MakeModel) -> None:
    model = make_model(dropout=0.5)
    arguments = (torch.tensor([[3, 4]]), torch.ones(1, 2).bool(), torch.tensor([[1, 5]]))
    still = model(*arguments)
    assert torch.equal(model(*arguments), still)
    model.train()
    assert not torch.equal(model(*arguments), model(*arguments))
    assert torch.equal(make_model(dropout=0.0)(*arguments), still)
