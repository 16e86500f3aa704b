"""Decoders with a recurrent unit: its equations by hand, and states in place of positions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dragoman.reference_model import (
    ConfigError,
    ModelConfig,
    Transformer,
    greedy_uncached,
    greedy_verified,
    make_model,
)
from dragoman.reference_model.attention import CrossAttention
from dragoman.reference_model.decoding import KeyValueCache, greedy_cached
from dragoman.reference_model.layers import GRU, SSRU
from dragoman.reference_model.stacks import NoMemory

from ..zoo import letters_model

MakeModel = Callable[..., Transformer]

KINDS: list[dict[str, Any]] = [
    {"decoder_kind": "ssru"},
    {"decoder_kind": "gru", "bilinear_scores": True},
    {"decoder_kind": "gru", "additive_scores": True},
]


@torch.no_grad()
def test_the_unit_by_hand() -> None:
    """One feature, weights W = 2 and W_f = 1, b_f = 0; inputs 0, ln 3 and -ln 3."""
    unit = SSRU(1)
    unit.forget.weight[:], unit.forget.bias[:], unit.update.weight[:] = 1, 0, 2
    x = torch.tensor([[[0.0], [math.log(3)], [-math.log(3)]]])
    found = unit(x, lambda unit, f, u: unit.states_after(torch.tensor([[4.0]]), f, u))
    first = 0.5 * 4 + 0.5 * 0
    second = 0.75 * first + 0.25 * 2 * math.log(3)
    third = 0.25 * second - 0.75 * 2 * math.log(3)
    assert third < 0
    assert found[0, :, 0].tolist() == pytest.approx([first, second, 0.0])


@pytest.mark.parametrize(("rows", "size", "queries"), [(1, 1, 1), (7, 33, 5)])
@torch.no_grad()
def test_gated_units_are_those_of_pytorch(rows: int, size: int, queries: int) -> None:
    """PyTorch's gates are in the order reset, update, new."""
    torch.manual_seed(size)
    unit, theirs = GRU(size), torch.nn.GRU(size, size, batch_first=True)
    weights = (*unit.of_input, *unit.of_state, *unit.bias[0].chunk(2))
    for parameter, weight in zip(theirs.parameters(), weights, strict=True):
        update, reset, new = weight.chunk(3)
        parameter[:] = torch.cat([reset, update, new])
    x, state = torch.randn(rows, queries, size), torch.randn(rows, size)
    expected, _ = theirs(x, state[None])
    found = unit(x, lambda unit, x: unit.states_after(state, x))
    torch.testing.assert_close(found, expected)


@torch.no_grad()
def test_additive_scores_by_hand() -> None:
    """One head of one number; v = 2, query 0, keys 0 and atanh(ln(3) / 2), and one masked."""
    config = letters_model(additive_scores=True, d_model=2, num_heads=1, d_head=1).config
    attention = CrossAttention(config)
    assert attention.additive is not None
    attention.additive[:], attention.query.weight[:], attention.query.bias[:] = 2, 0, 0
    attention.output.weight[:], attention.output.bias[:] = 1, 0
    key = torch.tensor([0.0, math.atanh(math.log(3) / 2), 5.0]).view(1, 1, 3, 1)
    value = torch.tensor([4.0, 8.0, 100.0]).view(1, 1, 3, 1)
    mask = torch.tensor([True, True, False]).view(1, 1, 1, 3)
    found = attention(torch.randn(2, 1, 2), key, value, mask)
    torch.testing.assert_close(found, torch.full((2, 1, 2), 0.25 * 4 + 0.75 * 8))


@pytest.mark.parametrize("changes", KINDS)
@torch.inference_mode()
def test_a_state_stands_for_all_positions_before(changes: dict[str, Any]) -> None:
    """Queries one by one, two at once and all at once give the same, row by row."""
    model = letters_model(**changes, decoder_layers=2)
    source = torch.tensor([[5, 6, 7], [8, 2, 0]])
    mask = source != 0
    token = torch.tensor([[1, 9, 4, 30, 7], [1, 3, 3, 8, 40]])
    cross = model.encode(source, mask)
    start = torch.zeros(2, dtype=torch.long)
    expected = model.decode(token, start, mask, cross, NoMemory())
    for sizes in ((1, 1, 1, 1, 1), (2, 1, 2)):
        cache = KeyValueCache(model.config, 2, 5)
        parts = []
        for part in torch.split(token, list(sizes), dim=1):
            parts.append(model.decode(part, cache.position, mask, cross, cache))
            cache.position += part.shape[1]
        torch.testing.assert_close(torch.cat(parts, 1), expected)
        assert cache.layers == []


@pytest.mark.parametrize("changes", KINDS)
def test_greedy_decoding_with_states_is_that_without(changes: dict[str, Any]) -> None:
    model = letters_model(**changes)
    sources = [[5, 6, 7, 2], [8], [9, 9, 3, 4, 5, 6, 2]]
    expected = greedy_uncached(model, sources, 20)
    assert len({tuple(output) for output in expected}) == 3
    assert greedy_cached(model, sources, 20) == greedy_verified(model, sources, 20) == expected


@pytest.mark.parametrize("changes", KINDS)
def test_no_query_sees_a_later_one(changes: dict[str, Any]) -> None:
    model = letters_model(**changes)
    source, mask = torch.tensor([[5, 6]]), torch.ones(1, 2, dtype=torch.bool)
    token = torch.tensor([[1, 9, 4, 30]])
    other = token.clone()
    other[0, 2] = 5
    with torch.inference_mode():
        found, changed = model(source, mask, token)[0], model(source, mask, other)[0]
    assert found[:2].equal(changed[:2])
    assert not torch.isclose(found[2:], changed[2:]).all(-1).any()


@pytest.mark.parametrize("changes", KINDS)
def test_all_weights_have_gradients(changes: dict[str, Any]) -> None:
    model = letters_model(**changes)
    source, mask = torch.tensor([[5, 6]]), torch.ones(1, 2, dtype=torch.bool)
    model(source, mask, torch.tensor([[1, 9, 4]])).square().sum().backward()
    names = [name for name, _ in model.named_parameters() if "decoder.layers" in name]
    assert not any("self_attention" in name for name in names)
    assert {name.partition("recurrence.")[2] for name in names if "recurrence." in name} == (
        {"forget.weight", "forget.bias", "update.weight"}
        if changes["decoder_kind"] == "ssru"
        else {"of_input", "of_state", "bias"}
    )
    for parameter in model.parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "relative"},
        {"source_vocab_size": None, "feature_size": 8},
        {"source_vocab_size": 0, "encoder_layers": 0, "max_source_positions": 0},
    ],
    ids=["relative positions", "audio", "no encoder"],
)
def test_what_it_is_not_for(changes: dict[str, object]) -> None:
    values = {"source_vocab_size": 11, "target_vocab_size": 13, "decoder_kind": "ssru"} | changes
    with pytest.raises(ConfigError, match="decoder_kind ssru needs an encoder of tokens, a deco"):
        ModelConfig.from_dict(values)


@pytest.mark.parametrize(
    "changes",
    [{"bilinear_scores": True}, {"score_scale": 0.5}, {"source_vocab_size": None}],
    ids=lambda changes: next(iter(changes)),
)
def test_what_additive_scores_are_not_for(changes: dict[str, Any]) -> None:
    values = {"source_vocab_size": 11, "target_vocab_size": 13, "additive_scores": True} | changes
    with pytest.raises(ConfigError, match="additive_scores need an encoder of tokens and a deco"):
        ModelConfig.from_dict(values)


def test_configurations_of_other_models_do_not_state_the_kind() -> None:
    plain = ModelConfig(source_vocab_size=11, target_vocab_size=13)
    recurrent = plain.replace(decoder_kind="ssru")
    assert plain.to_dict().keys().isdisjoint({"decoder_kind", "additive_scores"})
    assert ModelConfig.from_dict(recurrent.to_dict()) == recurrent
    assert isinstance(make_model(recurrent), Transformer)
    with pytest.raises(ConfigError, match="decoder_kind"):
        plain.replace(decoder_kind="lstm")
