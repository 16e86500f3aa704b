"""Batches with a limited number of tokens."""

from __future__ import annotations

import random

import pytest

from dragoman.reference_model.training.loss import Pair, token_batches


def random_pairs(count: int) -> list[Pair]:
    generator = random.Random(count)
    return [
        ([3] * generator.randrange(1, 30), [4] * generator.randrange(1, 30)) for _ in range(count)
    ]


def padded(pairs: list[Pair], batch: list[int]) -> int:
    return len(batch) * max(len(side) for index in batch for side in pairs[index])


@pytest.mark.parametrize("count", [0, 1, 2, 257])
@pytest.mark.parametrize("batch_tokens", [1, 29, 64, 10_000])
def test_each_pair_occurs_exactly_once_and_batches_stay_within_the_limit(
    count: int, batch_tokens: int
) -> None:
    pairs = random_pairs(count)
    batches = token_batches(pairs, batch_tokens, seed=1)
    assert sorted(index for batch in batches for index in batch) == list(range(count))
    for batch in batches:
        assert len(batch) == 1 or padded(pairs, batch) <= batch_tokens


def test_a_pair_longer_than_the_limit_is_a_batch_of_its_own() -> None:
    pairs: list[Pair] = [([3], [4]), ([3] * 50, [4]), ([3], [4] * 50), ([3], [4])]
    batches = token_batches(pairs, 8, seed=3)
    assert [1] in batches
    assert [2] in batches
    assert sorted(map(len, batches)) == [1, 1, 2]


def test_batches_are_filled_up() -> None:
    pairs: list[Pair] = [([3] * 4, [4] * 5)] * 23
    batches = token_batches(pairs, 20, seed=1)
    assert sorted(map(len, batches)) == [3, 4, 4, 4, 4, 4]


def test_the_longer_side_counts() -> None:
    pairs: list[Pair] = [([3] * 2, [4] * 10)] * 6
    assert {len(batch) for batch in token_batches(pairs, 20, seed=1)} == {2}
    turned: list[Pair] = [([3] * 10, [4] * 2)] * 6
    assert {len(batch) for batch in token_batches(turned, 20, seed=1)} == {2}


def test_the_seed_determines_the_batches() -> None:
    pairs = random_pairs(300)
    assert token_batches(pairs, 64, seed=5) == token_batches(pairs, 64, seed=5)
    assert token_batches(pairs, 64, seed=5) != token_batches(pairs, 64, seed=6)


def test_batches_are_not_ordered_by_length() -> None:
    pairs = random_pairs(300)
    longest = [
        max(len(pairs[index][0]) for index in batch) for batch in token_batches(pairs, 64, seed=5)
    ]
    assert longest != sorted(longest)


def test_pairs_of_equal_length_are_regrouped_in_each_epoch() -> None:
    pairs: list[Pair] = [([3] * 4, [4] * 4)] * 40
    first = {frozenset(batch) for batch in token_batches(pairs, 20, seed=1)}
    second = {frozenset(batch) for batch in token_batches(pairs, 20, seed=2)}
    assert first != second


def test_pairs_of_similar_length_share_a_batch() -> None:
    """There is little padding; batches of random pairs would have much."""
    pairs: list[Pair] = [([3] * length, [4] * length) for length in range(1, 201)]
    batches = token_batches(pairs, 800, seed=1)
    tokens = sum(len(pair[0]) for pair in pairs)
    assert tokens / sum(padded(pairs, batch) for batch in batches) > 0.9
