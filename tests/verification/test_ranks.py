"""Orders of documents are compared as scipy and scikit-learn compare them."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dragoman.export import export_bundle
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import EncoderModel, HeadConfig, ModelConfig
from dragoman.runtime import load, read_bundle
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.parity import RankParity
from dragoman.verification.checks import encoders
from dragoman.verification.checks.encoders import compare_encoder, kendall_tau, ndcg, tied
from dragoman.verification.oracle import rounded_oracle

Scores = NDArray[np.float64]


def lists(*, ties: bool) -> list[tuple[Scores, Scores]]:
    generator = np.random.default_rng(0)
    found = []
    for size in (2, 3, 7, 10, 11, 64):
        for noise in (0.0, 0.3, 5.0):
            expected = generator.normal(size=size)
            scores = expected + noise * generator.normal(size=size)
            if ties:
                expected, scores = expected.round(0), scores.round(0)
                expected[:2] = 0, 4  # some order
            found.append((expected, scores))
    return found


def _order(difference: float) -> int:
    return 0 if abs(difference) <= 1e-5 else int(math.copysign(1, difference))


def tau_by_pairs(expected: Scores, found: Scores) -> float:
    """Its definition, pair by pair."""
    agreeing, one, other = 0, 0, 0
    for i, j in combinations(range(len(expected)), 2):
        first, second = (_order(scores[i] - scores[j]) for scores in (expected, found))
        agreeing += first * second
        one += first != 0
        other += second != 0
    return agreeing / math.sqrt(one * other) if one * other else 0.0


def ndcg_by_places(expected: Scores, found: Scores) -> float:
    """Its definition, for scores without ties."""
    relevance = (expected - min(expected)) / (max(expected) - min(expected))

    def gain(order: list[int]) -> float:
        return float(sum(relevance[i] / math.log2(n + 2) for n, i in enumerate(order[:10])))

    def by(scores: Scores) -> list[int]:
        return sorted(range(len(scores)), key=lambda i: -scores[i])

    return gain(by(found)) / gain(by(expected))


def test_hand_worked_orders() -> None:
    scores = np.array([3.0, 1.0, 2.0])
    assert kendall_tau(scores, scores * 2) == kendall_tau(scores, scores**3) == 1
    assert kendall_tau(scores, -scores) == -1
    assert kendall_tau(scores, np.array([3.0, 2.0, 1.0])) == pytest.approx(1 / 3)
    assert kendall_tau(scores, np.zeros(3)) == 0
    assert kendall_tau(np.array([1.0, 1.0, 2.0]), scores) == pytest.approx(0)
    assert ndcg(scores, scores - 9) == 1
    worst = 0.5 / math.log2(3) + 1 / math.log2(4)  # relevances 0, 0.5 and 1 in this order
    assert ndcg(scores, -scores) == pytest.approx(worst / (1 + 0.5 / math.log2(3)))
    even = 1.5 * (1 + 1 / math.log2(3) + 1 / math.log2(4)) / 3
    assert ndcg(scores, np.zeros(3)) == pytest.approx(even / (1 + 0.5 / math.log2(3)))
    only = np.array([1.0, *[0.0] * 20])
    assert ndcg(only, np.arange(21.0)) == 0  # it comes last, after the first ten


def test_scores_that_rounding_changes_are_equal() -> None:
    scores = np.array([0.5, -3.0, 0.500003, 0.4999, 0.5, 7.0])
    assert tied(scores).tolist() == [2, 0, 2, 1, 2, 3]
    assert tied(np.zeros(3)).tolist() == [0, 0, 0]
    assert tied(np.array([2.0])).tolist() == [0]


@pytest.mark.parametrize("ties", [False, True])
def test_numbers_by_their_definitions(ties: bool) -> None:
    for expected, found in lists(ties=ties):
        assert kendall_tau(expected, found) == pytest.approx(tau_by_pairs(expected, found))
        if not ties:
            assert ndcg(expected, found) == pytest.approx(ndcg_by_places(expected, found))


@pytest.mark.parametrize("ties", [False, True])
def test_numbers_of_other_libraries(ties: bool) -> None:
    stats: Any = importlib.import_module("scipy.stats")
    metrics: Any = importlib.import_module("sklearn.metrics")
    for expected, found in lists(ties=ties):
        theirs = stats.kendalltau(expected, found).statistic
        assert kendall_tau(expected, found) == pytest.approx(np.nan_to_num(theirs))
        gains = (expected - expected.min()) / (expected.max() - expected.min())
        assert ndcg(expected, found) == pytest.approx(metrics.ndcg_score([gains], [found], k=10))


ENCODER: dict[str, Any] = {
    "source_vocab_size": 31,
    "target_vocab_size": 0,
    "encoder_layers": 1,
    "decoder_layers": 0,
    "d_model": 24,
    "num_heads": 3,
    "d_ff": 40,
    "max_source_positions": 12,
    "max_target_positions": 0,
    "positions": "learned",
    "pad_token_id": 0,
}
HEADS = {
    "embeddings": HeadConfig(task="embedding", pooling=("mean", "max")),
    "scores": HeadConfig(task="sequence-classification", labels=("relevance",)),
    "labels": HeadConfig(task="sequence-classification", labels=("a", "b", "c")),
}


class Compared(NamedTuple):
    """A comparison, and the embeddings or scores of oracle, bundle and rounded oracle."""

    ranks: RankParity | None
    outputs: dict[str, Scores | None]


Compare = Callable[..., Compared]


def sources(count: int) -> list[list[int]]:
    generator = np.random.default_rng(1)
    return [generator.integers(1, 31, size=1 + n % 11).tolist() for n in range(count)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[EncoderModel, Path]]:
    """A random model with each head, with its neutral bundle."""
    made = {}
    for name, head in HEADS.items():
        torch.manual_seed(4)
        model = EncoderModel(ModelConfig(**ENCODER, head=head)).eval()
        export_bundle(model, directory := tmp_path_factory.mktemp(name), name=name)
        made[name] = model, directory
    return made


@pytest.fixture
def compare(models: dict[str, tuple[EncoderModel, Path]], tmp_path: Path) -> Compare:
    def compare(
        kind: str, precision: Precision, count: int = 23, queries: list[str] | None = None
    ) -> Compared:
        model, neutral = models[kind]
        directory = tmp_path / f"{kind}-{precision}"
        if not directory.exists():
            directory.mkdir()
            bundle = read_bundle(neutral)
            optimize_bundle(bundle, directory, target="cpu", precision=precision)
        with load(directory, threads=1) as found:
            rounded = None if precision == "fp32" else rounded_oracle(model, found.manifest)
            options: dict[str, Any] = {"random": True, "advance": lambda n: None}
            parity = compare_encoder(
                found, model, rounded, sources(count), None, queries=queries, **options
            )
            each = {
                "oracle": outputs(model, kind, count),
                "bundle": read(found, kind, count),
                "rounded": None if rounded is None else outputs(rounded, kind, count),
            }
        return Compared(parity.ranks, each)

    return compare


@torch.inference_mode()
def outputs(model: EncoderModel, kind: str, count: int) -> Scores:
    """The embeddings or scores of each source, alone."""
    role = 1 if kind == "embeddings" else 0
    each = [
        model(torch.tensor([s]), torch.ones(1, len(s), dtype=torch.bool))[role][0]
        for s in sources(count)
    ]
    return torch.stack(each).double().numpy()


def read(model: Any, kind: str, count: int) -> Scores:
    if kind == "embeddings":
        return np.asarray(model.encode(sources(count)), np.float64)
    return np.array([[found.labels[0].score] for found in model.classify(sources(count))])


def mean_of(
    lists: list[tuple[Scores, Scores]], measure: Callable[[Scores, Scores], float]
) -> float:
    return float(np.mean([measure(expected, found) for expected, found in lists]))


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_the_order_of_scores(compare: Compare, precision: Precision) -> None:
    """Documents are ranked within their query; a query with one document has no order."""
    queries = [*"aabcb" * 4, "b", "a", "d"]
    found, scores = compare("scores", precision, queries=queries)
    assert found is not None and (found.lists, found.documents) == (3, 22)
    oracle = scores["oracle"]
    for who, ranks in (("bundle", found.bundle), ("rounded", found.rounded)):
        own_scores = scores[who]
        assert (ranks is None) == (own_scores is None) == (who == "rounded" and precision == "fp32")
        if ranks is None or own_scores is None or oracle is None:
            continue
        own = [np.array([i for i, q in enumerate(queries) if q == name]) for name in "abc"]
        pairs = [(oracle[i, 0], own_scores[i, 0]) for i in own]
        assert ranks.tau == pytest.approx(mean_of(pairs, tau_by_pairs))
        assert ranks.ndcg == pytest.approx(mean_of(pairs, ndcg_by_places))
    alone = compare("scores", precision).ranks
    assert alone is not None and (alone.lists, alone.documents) == (1, 23)
    if precision == "fp32":
        assert found.bundle.tau == alone.bundle.tau == 1


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_the_order_of_embeddings(compare: Compare, precision: Precision) -> None:
    """Each text ranks all others by cosine."""
    found, vectors = compare("embeddings", precision)
    assert found is not None and (found.lists, found.documents) == (23, 23 * 22)
    expected = similar(vectors["oracle"])
    for who, ranks in (("bundle", found.bundle), ("rounded", found.rounded)):
        assert (
            (ranks is None) == (vectors[who] is None) == (who == "rounded" and precision == "fp32")
        )
        if ranks is None:
            continue
        own = similar(vectors[who])
        pairs = [(np.delete(expected[i], i), np.delete(own[i], i)) for i in range(23)]
        assert ranks.tau == pytest.approx(mean_of(pairs, tau_by_pairs), abs=1e-6)
        assert ranks.ndcg == pytest.approx(mean_of(pairs, ndcg_by_places), abs=1e-6)
    assert found.bundle.tau > (0.99 if precision == "fp32" else 0.5)


def similar(vectors: Scores | None) -> Scores:
    """The cosines of all pairs."""
    assert vectors is not None
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(unit @ unit.T)


def test_models_and_inputs_without_an_order(
    compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compare("labels", "fp32").ranks is None
    assert compare("scores", "fp32", count=1).ranks is None
    assert compare("embeddings", "fp32", count=2).ranks is None
    monkeypatch.setattr(encoders, "MOST_RANKED", 5)
    meters = []
    result = encoders.RankMeter.result

    def spy(meter: encoders.RankMeter) -> RankParity | None:
        meters.append(meter)
        return result(meter)

    monkeypatch.setattr(encoders.RankMeter, "result", spy)
    for kind, expected in (("scores", (1, 5)), ("embeddings", (5, 20))):
        found = compare(kind, "fp32").ranks
        assert found is not None and (found.lists, found.documents) == expected
        assert list(meters.pop()._read) == [0, 4, 9, 13, 18]  # no others are kept
