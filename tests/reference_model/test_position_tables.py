"""Position embeddings: the sinusoids of section 3.5, and learned tables."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from dragoman.reference_model import Transformer
from dragoman.reference_model.stacks import LearnedPositions, SinusoidalPositions, sinusoids

MakeModel = Callable[..., Transformer]


def test_sinusoids_match_hand_computed_values() -> None:
    # d_model 4: wavelengths 1 and 10000^(2/4) = 100.
    expected = [
        [0.0, 1.0, 0.0, 1.0],
        [0.84147098, 0.54030231, 0.00999983, 0.99995000],
        [0.90929743, -0.41614684, 0.01999867, 0.99980001],
    ]
    torch.testing.assert_close(sinusoids(3, 4), torch.tensor(expected), atol=1e-7, rtol=0)


@pytest.mark.parametrize(("positions", "d_model"), [(1, 2), (9, 6), (1025, 512)])
def test_sinusoids_follow_the_formula(positions: int, d_model: int) -> None:
    table = sinusoids(positions, d_model)
    assert table.dtype == torch.float32
    assert table.shape == (positions, d_model)
    for pos in {0, positions // 2, positions - 1}:
        for i in {0, d_model // 4, d_model // 2 - 1}:
            angle = pos / 10000 ** (2 * i / d_model)
            assert table[pos, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-7)
            assert table[pos, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-7)


def test_the_sinusoidal_table_is_not_a_weight() -> None:
    positions = SinusoidalPositions(5, 4)
    assert list(positions.parameters()) == []
    assert positions.state_dict() == {}


def test_positions_are_looked_up_row_by_row() -> None:
    position = torch.tensor([[0, 3], [4, 1]])
    fixed = SinusoidalPositions(5, 4)
    assert torch.equal(fixed(position), sinusoids(5, 4)[position])
    learned = LearnedPositions(5, 3)
    assert torch.equal(learned(position), learned.table[position])


def test_learned_positions_are_one_table_a_stack(make_model: MakeModel) -> None:
    model = make_model(positions="learned", max_source_positions=7, max_target_positions=9)
    names = dict(model.named_parameters())
    assert names["encoder.embedding.positions.table"].shape == (7, 24)
    assert names["decoder.embedding.positions.table"].shape == (9, 24)


@torch.no_grad()
def test_learned_positions_enter_the_embedding(make_model: MakeModel) -> None:
    model = make_model(positions="learned", d_model=21, num_heads=3)
    embedding = model.decoder.embedding
    token = torch.tensor([[5, 5, 6]])
    table = dict(model.named_parameters())["decoder.embedding.positions.table"]
    expected = embedding.tokens.weight[token] * math.sqrt(21) + table[:3]
    torch.testing.assert_close(embedding(token, torch.arange(3)), expected)


@torch.no_grad()
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_the_order_of_the_source_matters(make_model: MakeModel, positions: str) -> None:
    model = make_model(positions=positions)
    mask = torch.ones(1, 3, dtype=torch.bool)
    target = torch.tensor([[1, 4]])
    forward = model(torch.tensor([[3, 4, 5]]), mask, target)
    backward = model(torch.tensor([[5, 4, 3]]), mask, target)
    assert (forward - backward).abs().max() > 1e-2


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_every_position_up_to_the_capacity_can_be_used(
    make_model: MakeModel, positions: str
) -> None:
    model = make_model(positions=positions, max_source_positions=5, max_target_positions=3)
    logits = model(torch.ones(1, 5).long(), torch.ones(1, 5).bool(), torch.ones(1, 3).long())
    assert logits.shape == (1, 3, 19)
    assert torch.isfinite(logits).all()
