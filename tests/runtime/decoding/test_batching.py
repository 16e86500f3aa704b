"""Which inputs share a batch, and how they are padded."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dragoman.runtime.decoding.request import batches, pad

LENGTHS = {
    "one": [4],
    "equal": [3] * 20,
    "rising": list(range(1, 30)),
    "one giant": [2, 2, 1000, 2, 2],
    "random": [random.Random(5).randint(1, 50) for _ in range(200)],
}


@pytest.mark.parametrize("max_batch_tokens", [1, 10, 64, 10**6])
@pytest.mark.parametrize("max_batch_size", [1, 3, 64])
@pytest.mark.parametrize("name", LENGTHS)
def test_each_input_is_in_one_batch_within_the_limits(
    name: str, max_batch_size: int, max_batch_tokens: int
) -> None:
    lengths = LENGTHS[name]
    found = list(batches(lengths, max_batch_size=max_batch_size, max_batch_tokens=max_batch_tokens))
    assert sorted(index for batch in found for index in batch) == list(range(len(lengths)))
    for batch in found:
        padded = len(batch) * max(lengths[index] for index in batch)
        assert 1 <= len(batch) <= max_batch_size
        assert padded <= max_batch_tokens or len(batch) == 1


def test_the_longest_come_first_and_similar_lengths_together() -> None:
    found = list(batches([1, 9, 2, 8, 3], max_batch_size=2, max_batch_tokens=100))
    assert found == [[1, 3], [4, 2], [0]]


def test_padding_counts_towards_the_limit() -> None:
    assert list(batches([6, 1, 1], max_batch_size=9, max_batch_tokens=12)) == [[0, 1], [2]]


def test_equal_lengths_keep_their_order() -> None:
    assert list(batches([2] * 5, max_batch_size=3, max_batch_tokens=99)) == [[0, 1, 2], [3, 4]]


def test_no_inputs_give_no_batches() -> None:
    assert list(batches([], max_batch_size=1, max_batch_tokens=1)) == []


def test_rows_are_padded_at_the_end_and_masked() -> None:
    tokens, mask = pad([[5, 6, 7], [8], [7, 7]], 7)
    np.testing.assert_array_equal(tokens, [[5, 6, 7], [8, 7, 7], [7, 7, 7]])
    np.testing.assert_array_equal(mask, [[1, 1, 1], [1, 0, 0], [1, 1, 0]])
    assert tokens.dtype == np.int64
    assert mask.dtype == np.bool_
