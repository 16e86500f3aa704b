"""Padding, other rows and later target tokens must not influence the output."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dragoman.reference_model import Transformer, pad
from dragoman.reference_model.attention import causal_mask

MakeModel = Callable[..., Transformer]

VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm_order": "pre", "positions": "learned"},
    {"d_head": 5, "activation": "silu", "tie_target_output": False},
]


def rows_of(lengths: list[int], vocab: int) -> list[list[int]]:
    generator = random.Random(len(lengths))
    return [[generator.randrange(vocab) for _ in range(length)] for length in lengths]


@torch.no_grad()
@pytest.mark.parametrize("changes", VARIANTS)
def test_a_batch_does_not_change_a_row(make_model: MakeModel, changes: dict[str, Any]) -> None:
    model = make_model(**changes)
    sources = rows_of([5, 1, 16, 9, 2, 12, 3], 17)
    target = torch.randint(0, 19, (7, 6))
    source, mask = pad(sources, model.config.pad_token_id)
    together = model(source, mask, target)
    for index, row in enumerate(sources):
        alone, alone_mask = pad([row], model.config.pad_token_id)
        logits = model(alone, alone_mask, target[index : index + 1])
        torch.testing.assert_close(logits[0], together[index], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_the_content_of_padding_does_not_matter(make_model: MakeModel) -> None:
    model = make_model()
    source, mask = pad(rows_of([3, 8], 17), 0)
    target = torch.tensor([[1, 5], [1, 6]])
    expected = model(source, mask, target)
    source[~mask] = 13
    assert torch.equal(model(source, mask, target), expected)


@torch.no_grad()
@pytest.mark.parametrize("changes", VARIANTS)
def test_a_later_token_does_not_change_earlier_logits(
    make_model: MakeModel, changes: dict[str, Any]
) -> None:
    model = make_model(**changes)
    source, mask = pad(rows_of([4, 7], 17), 0)
    target = torch.randint(0, 19, (2, 12))
    expected = model(source, mask, target)
    for position in range(12):
        changed = target.clone()
        changed[:, position] = (changed[:, position] + 1) % 19
        logits = model(source, mask, changed)
        assert torch.equal(logits[:, :position], expected[:, :position])
        assert (logits[:, position:] - expected[:, position:]).abs().amax() > 1e-3


@torch.no_grad()
def test_every_source_token_matters(make_model: MakeModel) -> None:
    model = make_model()
    source, mask = pad(rows_of([6], 17), 0)
    target = torch.tensor([[1, 4]])
    expected = model(source, mask, target)
    for position in range(6):
        changed = source.clone()
        changed[:, position] = (changed[:, position] + 1) % 17
        assert (model(changed, mask, target) - expected).abs().max() > 1e-4


def test_pad_matches_a_hand_written_batch() -> None:
    tokens, mask = pad([[5], [6, 7, 8], [9, 9]], 4)
    assert tokens.tolist() == [[5, 4, 4], [6, 7, 8], [9, 9, 4]]
    assert mask.tolist() == [[True, False, False], [True, True, True], [True, True, False]]
    assert (tokens.dtype, mask.dtype) == (torch.int64, torch.bool)


def test_the_pad_token_itself_is_an_ordinary_token() -> None:
    _, mask = pad([[4, 4, 4]], 4)
    assert mask.tolist() == [[True, True, True]]


def table(text: str) -> list[list[bool]]:
    return [[symbol == "x" for symbol in line] for line in text.split()]


def test_from_the_start_a_causal_mask_is_a_triangle() -> None:
    mask = causal_mask(torch.tensor([0]), 4, 4)
    assert mask.dtype == torch.bool
    assert mask.shape == (1, 1, 4, 4)
    assert mask[0, 0].tolist() == table("x... xx.. xxx. xxxx")


def test_each_row_starts_at_its_own_position() -> None:
    mask = causal_mask(torch.tensor([0, 2, 3]), 2, 5)
    assert mask.shape == (3, 1, 2, 5)
    assert mask[:, 0].tolist() == [
        table("x.... xx..."),
        table("xxx.. xxxx."),
        table("xxxx. xxxxx"),
    ]


def test_one_query_at_each_position_of_a_cache() -> None:
    rows = [causal_mask(torch.tensor([p]), 1, 3)[0, 0, 0].tolist() for p in range(3)]
    assert rows == table("x.. xx. xxx")


def test_one_query_one_key() -> None:
    assert causal_mask(torch.tensor([0]), 1, 1).tolist() == [[[[True]]]]
