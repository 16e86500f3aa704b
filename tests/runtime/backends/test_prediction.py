"""The best tokens of each row are found without sorting; beams copy few positions."""

from __future__ import annotations

import numpy as np
import pytest

from dragoman.runtime.backends.interface import StepOutput
from dragoman.runtime.backends.prediction import HostPrediction, best_tokens
from dragoman.runtime.backends.rows import CacheHistory, RowCopy


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("vocabulary", [2, 9, 59, 1000, 4099, 32000])
@pytest.mark.parametrize("count", [1, 2, 8, 50, 1000])
def test_the_best_tokens_are_those_of_a_sort(rows: int, vocabulary: int, count: int) -> None:
    count = min(count, vocabulary)
    order = np.random.default_rng(vocabulary + count).permutation(rows * vocabulary)
    scores = order.reshape(rows, vocabulary).astype(np.float32)
    scores[0, : vocabulary // 2] = -np.inf
    found = best_tokens(scores, count)
    expected = -np.sort(-scores, axis=1)[:, :count]
    np.testing.assert_array_equal(np.take_along_axis(scores, found, 1), expected)
    assert all(len(set(row)) == count for row in found.tolist())


def test_normalizers_count_suppressed_tokens() -> None:
    logits = np.array([[1, 5, 2, 0], [3, -2, 4, 1]], np.float32)
    allowed = np.delete(logits, 1, axis=1)
    highest = np.array([2, 2])
    log_probabilities = np.array([2, 4]) - np.log(np.exp(allowed).sum(1))
    prediction = HostPrediction(
        logits, StepOutput(highest, log_probabilities.astype(np.float32)), [1]
    )
    np.testing.assert_allclose(prediction.normalizers, np.log(np.exp(logits).sum(1)), rtol=1e-6)
    best = prediction.candidates(2)
    assert best.tokens.tolist() == [[2, 0], [2, 0]]
    expected = np.take_along_axis(logits, best.tokens, 1) - prediction.normalizers[:, None]
    np.testing.assert_allclose(best.log_probabilities, expected, rtol=1e-6)
    assert prediction.candidates(4).tokens.tolist() == [[2, 0, 3], [2, 0, 3]]


@pytest.mark.parametrize("count", [1, 3, 9, 14])
def test_suppressed_tokens_are_no_candidates(count: int) -> None:
    """Of 14, 5 are suppressed: mostly likely ones in one row, and unlikely ones in the other."""
    logits = np.random.default_rng(count).standard_normal((2, 14)).astype(np.float32)
    suppressed = [3, 4, 7, 10, 13, 4]
    logits[0, suppressed] += 9
    logits[1, suppressed] -= 9
    allowed = logits.copy()
    allowed[:, suppressed] = -np.inf
    order = np.argsort(-allowed, axis=1)[:, : min(count, 9)]
    choice = StepOutput(order[:, 0], np.full(2, -1.0, np.float32))
    prediction, before = HostPrediction(logits, choice, suppressed), logits.copy()
    found = prediction.candidates(count)
    np.testing.assert_array_equal(found.tokens, order)
    likely = np.take_along_axis(logits, order, 1) - prediction.normalizers[:, None]
    np.testing.assert_array_equal(found.log_probabilities, likely)
    np.testing.assert_array_equal(logits, before)


def test_candidates_of_a_large_vocabulary() -> None:
    """Found by blocks, in a view of a step of several queries; the logits stay as they were."""
    generator = np.random.default_rng(0)
    queries = generator.standard_normal((3, 2, 5000)).astype(np.float32)
    suppressed = generator.choice(5000, 90, replace=False).tolist()
    queries[:, :, suppressed] += 4
    queries[1, -1, 100:] = -np.inf  # fewer than are asked for, and suppressed ones among them
    logits, before = queries[:, -1], queries.copy()
    allowed = logits.copy()
    allowed[:, suppressed] = -np.inf
    order = np.argsort(-allowed, axis=1, kind="stable")[:, :120]
    choice = StepOutput(order[:, 0], np.full(3, -1.0, np.float32))
    prediction = HostPrediction(logits, choice, suppressed)
    found = prediction.candidates(120)
    likely = np.take_along_axis(allowed, order, 1) - prediction.normalizers[:, None]
    np.testing.assert_array_equal(found.log_probabilities, likely)
    finite = likely > -np.inf
    np.testing.assert_array_equal(found.tokens[finite], order[finite])
    np.testing.assert_array_equal(queries, before)


def test_logits_are_restored_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    logits = np.array([[1, 5, 2, 0]], np.float32)
    choice = StepOutput(np.array([2]), np.array([-1], np.float32))
    monkeypatch.setattr("dragoman.runtime.backends.prediction.best_tokens", fail)
    with pytest.raises(MemoryError):
        HostPrediction(logits, choice, [1]).candidates(2)
    assert logits.tolist() == [[1, 5, 2, 0]]


def test_only_positions_after_two_rows_parted_are_moved() -> None:
    lineage = CacheHistory(4, 10)
    positions = np.zeros(4, np.int64)
    lineage.write(positions, 1)
    parents = np.array([0, 0, 0, 0])
    assert lineage.copies(parents, positions + 1) == [RowCopy(0, to, 0, 1) for to in (1, 2, 3)]
    for position in (1, 2):
        lineage.write(positions + position, 1)
    assert lineage.copies(np.array([0, 1, 1, 3]), positions + 3) == [RowCopy(1, 2, 1, 3)]
    lineage.write(positions + 3, 1)
    # Rows 1 and 2 have three positions in common, row 0 and 1 the first.
    assert lineage.copies(np.array([0, 2, 2, 0]), positions + 4) == [
        RowCopy(2, 1, 3, 4),
        RowCopy(0, 3, 1, 4),
    ]
    assert lineage.copies(np.arange(4), positions + 4) == []


def test_a_row_that_joins_has_nothing_in_common_with_others() -> None:
    lineage, other = CacheHistory(2, 4), CacheHistory(2, 4)
    for each in (lineage, other):
        each.write(np.zeros(2, np.int64), 2)
    lineage.resize(4)
    lineage.take(other, 0, 2)
    lineage.take(other, 1, 3)
    assert lineage.copies(np.array([0, 1, 2, 2]), np.full(4, 2)) == [RowCopy(2, 3, 0, 2)]
