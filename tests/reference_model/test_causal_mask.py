"""Which keys a query may attend to."""

from __future__ import annotations

import torch

from dragoman.reference_model.attention import causal_mask


def table(text: str) -> list[list[bool]]:
    return [[symbol == "x" for symbol in line] for line in text.split()]


def test_from_the_start_it_is_a_triangle() -> None:
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
