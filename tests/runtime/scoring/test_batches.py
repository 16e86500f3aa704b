"""Scoring in batches: bounded, and halved where they do not fit."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman.runtime import BackendError
from dragoman.runtime.backends.interface import Limits
from dragoman.runtime.format.model_spec import ModelSpec
from dragoman.runtime.scoring import teacher_forcing
from dragoman.runtime.scoring.interface import ScoredPair, rejected
from dragoman.runtime.scoring.teacher_forcing import (
    ForcedPair,
    log_probabilities_of,
    score_in_batches,
)

VOCABULARY = 13
SPEC = ModelSpec(VOCABULARY, VOCABULARY, 1, 2, 3, 64, 64, 0, 1, 2)


class Recorded:
    """A backend whose logits depend on what each row reads, with room for so many tokens."""

    def __init__(self, room: int = 10**9, rows: int | None = None, bad: int | None = None) -> None:
        self.room, self.limits, self.bad = room, Limits(rows), bad
        self.batches: list[tuple[int, int]] = []

    def score(
        self,
        source: NDArray[Any],
        mask: NDArray[np.bool_],
        target: NDArray[np.int64],
        positions: None = None,
    ) -> NDArray[np.float32]:
        if target.size > self.room:
            raise BackendError("no memory")
        self.batches.append(target.shape)
        logits = np.zeros((*target.shape, VOCABULARY), np.float32)
        np.put_along_axis(logits, target[..., None], source[:, :1, None] + np.float32(1), axis=2)
        if self.bad is not None:
            logits[source[:, 0] == self.bad] = np.nan
        return logits


def pairs(count: int) -> list[ForcedPair]:
    generator = random.Random(count)

    def ids(longest: int) -> list[int]:
        return [generator.randrange(VOCABULARY) for _ in range(generator.randint(1, longest))]

    return [ForcedPair(ids(20), (1, 5), tuple(ids(30))) for _ in range(count)]


def by_hand(pair: ForcedPair) -> list[float]:
    """The token just read has a logit of 1 + the source's first token, all others 0."""
    assert isinstance(pair.source, list)
    weight = np.exp(pair.source[0] + 1.0)
    total = np.log(weight + VOCABULARY - 1)
    return [
        float((np.log(weight) if token == read else 0.0) - total)
        for read, token in zip(pair.read[1:], pair.target, strict=True)
    ]


def check(given: list[ForcedPair], found: list[ScoredPair]) -> None:
    for pair, scored in zip(given, found, strict=True):
        assert scored.tokens == pair.target
        assert scored.token_log_probabilities == pytest.approx(by_hand(pair), abs=1e-5)
        assert scored.log_probability == pytest.approx(sum(by_hand(pair)), abs=1e-4)


@pytest.mark.parametrize("count", [1, 7, 40])
@pytest.mark.parametrize("size", [1, 3, 64])
def test_results_are_in_order_within_the_limits(count: int, size: int) -> None:
    backend, given = Recorded(rows=5), pairs(count)
    check(given, score_in_batches(backend, SPEC, given, size))  # type: ignore[arg-type]
    assert max(rows for rows, _ in backend.batches) <= min(size, 5)
    assert sum(rows for rows, _ in backend.batches) == count


@pytest.mark.parametrize("limit", ["MAX_TOKENS", "MAX_LOGITS"])
def test_batches_are_bounded(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = 64
    monkeypatch.setattr(
        teacher_forcing, limit, tokens * (VOCABULARY if limit == "MAX_LOGITS" else 1)
    )
    backend, given = Recorded(), pairs(40)
    check(given, score_in_batches(backend, SPEC, given, 64))  # type: ignore[arg-type]
    assert all(rows * length <= tokens for rows, length in backend.batches)
    assert max(rows for rows, _ in backend.batches) > 1


def test_a_batch_that_does_not_fit_is_halved() -> None:
    backend, given = Recorded(room=60), pairs(40)
    check(given, score_in_batches(backend, SPEC, given, 64))  # type: ignore[arg-type]
    assert max(rows for rows, _ in backend.batches) > 1


def test_a_pair_that_fails_alone_is_rejected_alone() -> None:
    given = pairs(7)
    given[3] = ForcedPair([12], (1,), (4, 5))
    for backend, message in (
        (Recorded(bad=12), "the model's logits are not finite numbers"),
        (Recorded(room=1), "no memory"),
    ):
        found = score_in_batches(backend, SPEC, given, 64)  # type: ignore[arg-type]
        assert found[3] == rejected(message)
    others = [i for i, pair in enumerate(given) if pair.source[0] != 12]
    found = score_in_batches(Recorded(bad=12), SPEC, given, 64)  # type: ignore[arg-type]
    check([given[i] for i in others], [found[i] for i in others])


def test_rejected_pairs_stay_where_they_are() -> None:
    given = pairs(3)
    bad = rejected("target: unknown")
    found = score_in_batches(Recorded(), SPEC, [bad, *given, bad], 64)  # type: ignore[arg-type]
    assert found[0] == found[-1] == bad
    check(given, found[1:-1])


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_large_logits_do_not_overflow(kind: type[np.generic]) -> None:
    logits = np.array([[60000, 59999, -60000], [-60000, -60000, -60000]], kind)
    expected = [np.log(1 / (1 + np.exp(1.0))) if kind is np.float32 else None, np.log(1 / 3)]
    found = log_probabilities_of(logits, [1, 2])
    assert found[1] == pytest.approx(expected[1])
    if expected[0] is not None:
        assert found[0] == pytest.approx(expected[0])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_so(bad: float) -> None:
    assert not np.isfinite(log_probabilities_of(np.array([[0.0, bad]]), [0])).any()
