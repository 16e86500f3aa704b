"""Batches with a limited number of tokens."""

from __future__ import annotations

import itertools
import random
import tracemalloc
from collections import Counter

import numpy as np
import pytest

from dragoman.reference_model.training import loss
from dragoman.reference_model.training.loss import Pair, TokenBatches, TokenPairs


def random_pairs(count: int) -> list[Pair]:
    generator = random.Random(count)
    return [
        ([3] * generator.randrange(1, 30), [4] * generator.randrange(1, 30)) for _ in range(count)
    ]


def token_batches(pairs: list[Pair] | TokenPairs, limit: int, *, seed: int) -> list[list[int]]:
    return [batch.tolist() for batch in TokenBatches(pairs, limit, seed=seed)]


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


@pytest.mark.parametrize("count", [0, 1, 2, 63, 1031])
@pytest.mark.parametrize("limit", [1, 40, 333, 100_000])
def test_batches_are_those_of_lists_of_pairs(count: int, limit: int) -> None:
    """The method in plain Python: a shuffle, a stable sort, and pairs added one by one."""
    pairs = random_pairs(count)
    generator = random.Random(7)
    order = list(range(count))
    generator.shuffle(order)
    order.sort(key=lambda i: (len(pairs[i][0]), len(pairs[i][1])))
    expected: list[list[int]] = []
    for index in order:
        if not expected or padded(pairs, [*expected[-1], index]) > limit:
            expected.append([])
        expected[-1].append(index)
    generator.shuffle(expected)
    assert token_batches(pairs, limit, seed=7) == expected
    assert token_batches(TokenPairs.of(pairs), limit, seed=7) == expected


@pytest.mark.parametrize(("largest", "dtype"), [(65_535, np.uint16), (65_536, np.int32)])
def test_flat_pairs_are_the_pairs(largest: int, dtype: type[np.generic]) -> None:
    pairs: list[Pair] = [([3, largest], [4]), ([], [7, 8, 9]), ([5], [])]
    flat = TokenPairs.of(iter(pairs))
    assert flat.tokens.dtype == dtype and flat.tokens.tolist() == [3, largest, 4, 7, 8, 9, 5]
    assert list(flat) == pairs and len(flat) == 3 and TokenPairs.of(flat) is flat
    assert flat.lengths().tolist() == [[2, 1], [0, 3], [1, 0]]
    assert list(TokenPairs.of([])) == []


def test_weights_say_how_often_the_pairs_of_a_corpus_occur() -> None:
    pairs = TokenPairs.of(random_pairs(35))
    pairs.corpora = [(10, 1.0), (5, 2.0), (20, 0.25)]
    seen: Counter[int] = Counter()
    for seed in range(60):
        batches = token_batches(pairs, 64, seed=seed)
        assert batches == token_batches(pairs, 64, seed=seed)
        counts = Counter(index for batch in batches for index in batch)
        assert [counts[index] for index in range(15)] == [1] * 10 + [2] * 5
        drawn = [counts[index] for index in range(15, 35)]
        assert sum(drawn) == 5 and max(drawn) == 1
        seen.update(counts)
    assert set(seen) == set(range(35)), "each epoch draws others"
    pairs.corpora = [(35, 1.5)]
    counts = Counter(index for batch in token_batches(pairs, 64, seed=1) for index in batch)
    assert sorted(counts.values()) == [1] * 17 + [2] * 18


def test_a_part_of_an_epoch_at_a_time_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """All bytes of arrays count. Weights of 1 take as much."""
    monkeypatch.setattr(loss, "SMALLEST_PART", 1000)
    pairs = TokenPairs.of(random_pairs(3000))
    peaks = []
    for weights in ((1.0, 1.0), (1.0, 500.25)):
        pairs.corpora = [*zip((2900, 100), weights, strict=True)]
        tracemalloc.start()
        counts = Counter(int(index) for batch in TokenBatches(pairs, 64, seed=1) for index in batch)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert {counts[index] for index in range(2900)} == {1}
        assert sum(counts.values()) == 2900 + round(100 * weights[1])
        assert {counts[index] for index in range(2900, 3000)} <= {int(weights[1]), 501}
    assert peaks[1] < 2 * peaks[0]


def test_parts_of_an_epoch_have_their_share_of_each_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "SMALLEST_PART", 30)
    listed = random_pairs(60)
    pairs = TokenPairs.of(listed)
    pairs.corpora = [(50, 1.0), (10, 25.3)]
    assert pairs.parts() == 5
    parts = [list(pairs.of_epoch(7, part)) for part in range(5)]
    small = [sorted(index for index in part if index >= 50) for part in parts]
    assert [len(part) - len(few) for part, few in zip(parts, small, strict=True)] == [10] * 5
    assert [len(few) for few in small] == [50, 51, 50, 51, 51]
    assert all(set(Counter(few).values()) <= {5, 6} for few in small)
    assert sorted(parts[0])[:10] != list(range(10)), "drawn from all of the corpus"
    batches = TokenBatches(pairs, 64, seed=7)
    found = [batch.tolist() for batch in batches]
    assert len(found) == len(batches) and found[-3:] == [b.tolist() for b in batches[-3:]]
    assert [batches[n].tolist() for n in reversed(range(len(found)))] == found[::-1]
    assert sorted(index for batch in found for index in batch) == sorted(itertools.chain(*parts))
    assert all(len(batch) == 1 or padded(listed, batch) <= 64 for batch in found)
