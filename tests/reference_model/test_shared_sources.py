"""Rows that share a source decode as if each had one of its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dragoman.reference_model import KeysValues, ModelConfig, Transformer
from dragoman.reference_model.attention import CrossAttention
from dragoman.reference_model.decoding import KeyValueCache
from dragoman.reference_model.stacks import NoMemory

from ..random_weights import random_transformer

LENGTHS = torch.tensor([6, 1, 3, 6, 2, 5, 4])


@pytest.fixture(scope="module", params=["sinusoidal", "relative"])
def model(request: pytest.FixtureRequest) -> Transformer:
    """In float64, so that another order of sums makes no difference."""
    config = ModelConfig(
        source_vocab_size=23,
        target_vocab_size=29,
        encoder_layers=1,
        decoder_layers=2,
        d_model=32,
        num_heads=3,
        d_head=12,
        d_ff=40,
        positions=request.param,
        max_source_positions=16,
        max_target_positions=12,
        dropout=0.0,
    )
    return random_transformer(config, seed=4).double()


def of_rows(cross: list[KeysValues], mask: Tensor, width: int) -> tuple[list[KeysValues], Tensor]:
    """Every source repeated for each of its rows."""
    repeated = [(k.repeat_interleave(width, 0), v.repeat_interleave(width, 0)) for k, v in cross]
    return repeated, mask.repeat_interleave(width, 0)


@pytest.mark.parametrize("sources", [1, 2, 7])
@pytest.mark.parametrize("width", [1, 2, 4, 5])
@torch.no_grad()
def test_shared_sources_are_those_repeated(model: Transformer, width: int, sources: int) -> None:
    torch.manual_seed(width * sources)
    mask = torch.arange(6) < LENGTHS[:sources, None]
    cross = model.encode(torch.randint(3, 23, (sources, 6)), mask)
    target = torch.randint(3, 29, (sources * width, 5))
    start = torch.zeros(sources * width, dtype=torch.long)
    logits = model.decode(target, start, mask, cross, NoMemory())
    repeated, masks = of_rows(cross, mask, width)
    torch.testing.assert_close(logits, model.decode(target, start, masks, repeated, NoMemory()))


@torch.no_grad()
def test_rows_of_a_source_may_be_at_different_positions(model: Transformer) -> None:
    torch.manual_seed(0)
    mask = torch.arange(6) < LENGTHS[:2, None]
    cross = model.encode(torch.randint(3, 23, (2, 6)), mask)
    target = torch.randint(3, 29, (6, 4))
    start, position = torch.zeros(6, dtype=torch.long), torch.tensor([0, 3, 1, 2, 2, 0])
    repeated, masks = of_rows(cross, mask, 3)
    expected = model.decode(target, start, masks, repeated, NoMemory())
    cache = KeyValueCache(model.config, 6, 12)
    cache.layers = [(k.double(), v.double()) for k, v in cache.layers]
    model.decode(target, start, mask, cross, cache)
    cache.position = position
    rows = torch.arange(6)
    found = model.decode(target[rows, position][:, None], position, mask, cross, cache)
    torch.testing.assert_close(found[:, 0], expected[rows, position])


@torch.no_grad()
def test_a_row_with_a_source_of_its_own_is_computed_as_before(model: Transformer) -> None:
    """To the bit as by attention that knows nothing of shared sources."""
    attention = model.decoder.layers[1].cross_attention
    assert isinstance(attention, CrossAttention)
    torch.manual_seed(1)
    x, memory = torch.randn(2, 7, 3, 32, dtype=torch.double)
    mask = (torch.arange(3) < LENGTHS[:, None])[:, None, None]
    key, value = attention.keys_values(memory)
    expected = super(CrossAttention, attention).forward(x, key, value, mask)
    assert torch.equal(attention(x, key, value, mask), expected)
