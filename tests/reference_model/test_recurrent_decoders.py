"""Decoders with a recurrent unit: its equations by hand, and states in place of positions."""

from __future__ import annotations

import math
from collections.abc import Callable

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
from dragoman.reference_model.decoding import KeyValueCache, greedy_cached
from dragoman.reference_model.layers import SSRU, states_after
from dragoman.reference_model.stacks import NoMemory

from ..zoo import letters_model

MakeModel = Callable[..., Transformer]


@torch.no_grad()
def test_the_unit_by_hand() -> None:
    """One feature, weights W = 2 and W_f = 1, b_f = 0; inputs 0, ln 3 and -ln 3."""
    unit = SSRU(1)
    unit.forget.weight[:], unit.forget.bias[:], unit.update.weight[:] = 1, 0, 2
    x = torch.tensor([[[0.0], [math.log(3)], [-math.log(3)]]])
    found = unit(x, lambda f, u: states_after(f, u, torch.tensor([[4.0]])))
    first = 0.5 * 4 + 0.5 * 0
    second = 0.75 * first + 0.25 * 2 * math.log(3)
    third = 0.25 * second - 0.75 * 2 * math.log(3)
    assert third < 0
    assert found[0, :, 0].tolist() == pytest.approx([first, second, 0.0])


@torch.inference_mode()
def test_a_state_stands_for_all_positions_before() -> None:
    """Queries one by one, two at once and all at once give the same, row by row."""
    model = letters_model(decoder_kind="ssru", decoder_layers=2)
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


def test_greedy_decoding_with_states_is_that_without() -> None:
    model = letters_model(decoder_kind="ssru")
    sources = [[5, 6, 7, 2], [8], [9, 9, 3, 4, 5, 6, 2]]
    expected = greedy_uncached(model, sources, 20)
    assert len({tuple(output) for output in expected}) == 3
    assert greedy_cached(model, sources, 20) == greedy_verified(model, sources, 20) == expected


def test_no_query_sees_a_later_one() -> None:
    model = letters_model(decoder_kind="ssru")
    source, mask = torch.tensor([[5, 6]]), torch.ones(1, 2, dtype=torch.bool)
    token = torch.tensor([[1, 9, 4, 30]])
    other = token.clone()
    other[0, 2] = 5
    with torch.inference_mode():
        found, changed = model(source, mask, token)[0], model(source, mask, other)[0]
    assert found[:2].equal(changed[:2])
    assert not torch.isclose(found[2:], changed[2:]).all(-1).any()


def test_all_weights_have_gradients() -> None:
    model = letters_model(decoder_kind="ssru")
    source, mask = torch.tensor([[5, 6]]), torch.ones(1, 2, dtype=torch.bool)
    model(source, mask, torch.tensor([[1, 9, 4]])).square().sum().backward()
    names = [name for name, _ in model.named_parameters() if "decoder.layers" in name]
    assert not any("self_attention" in name for name in names)
    assert {name.removeprefix("decoder.layers.0.") for name in names if "recurrence." in name} == {
        *("recurrence.forget.weight", "recurrence.forget.bias", "recurrence.update.weight")
    }
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


def test_configurations_of_other_models_do_not_state_the_kind() -> None:
    plain = ModelConfig(source_vocab_size=11, target_vocab_size=13)
    recurrent = plain.replace(decoder_kind="ssru")
    assert "decoder_kind" not in plain.to_dict()
    assert ModelConfig.from_dict(recurrent.to_dict()) == recurrent
    assert isinstance(make_model(recurrent), Transformer)
    with pytest.raises(ConfigError, match="decoder_kind"):
        plain.replace(decoder_kind="gru")
