"""The paired bootstrap: is a difference more than chance?"""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray
from sacrebleu import BLEU
from sacrebleu.significance import PairedTest

from dragoman.metrics import METRICS
from dragoman.metrics.metric import SEED, bootstrap_chance
from dragoman.metrics.segment_metrics import SegmentMetric

WORDS = ["the", "a", "cat", "dog", "man", "sat", "ran", "on", "under", "mat", "and", "was", "not"]


def sentences(count: int, seed: int = 0) -> list[str]:
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=generator.randint(5, 12))) for _ in range(count)]


def spoilt(texts: list[str], share: float, seed: int = 1) -> list[str]:
    """With so many texts cut after their third word."""
    generator = random.Random(seed)
    return [" ".join(text.split()[:3]) if generator.random() < share else text for text in texts]


@pytest.mark.parametrize("name", METRICS)
def test_the_same_outputs_differ_by_chance(name: str) -> None:
    """sacrebleu itself says 1 / 1001."""
    texts = sentences(20)
    references = [[text] for text in sentences(20)]
    assert METRICS[name].chance(texts, list(texts), references) == 1.0
    other = spoilt(texts, 0.5)
    assert METRICS[name].chance(other, other, references) == 1.0


@pytest.mark.parametrize("name", METRICS)
def test_much_worse_is_no_chance_and_the_same_every_time(name: str) -> None:
    texts = sentences(60)
    references = [[text] for text in texts]
    metric, worse = METRICS[name], spoilt(texts, 0.5)
    found = metric.chance(texts, worse, references)
    assert found < 0.05
    assert metric.chance(texts, worse, references) == found
    assert metric.chance(worse, texts, references) == pytest.approx(found, abs=0.02)  # two-sided


@pytest.mark.parametrize("name", METRICS)
def test_one_worse_text_of_many_may_be_chance(name: str) -> None:
    texts = sentences(40)
    worse = [texts[0][:9], *texts[1:]]
    assert METRICS[name].chance(texts, worse, [[text] for text in texts]) > 0.05


@pytest.mark.parametrize("name", METRICS)
def test_a_single_text_says_nothing(name: str) -> None:
    assert METRICS[name].chance(["a b c d"], ["x"], [["a b c d"]]) == 1.0


@pytest.mark.parametrize("share", [0.02, 0.1, 0.3])
def test_bleu_is_tested_by_sacrebleu(share: float) -> None:
    texts, several = sentences(50), sentences(50, seed=9)
    worse = spoilt(texts, share)
    streams = [texts, several]
    test = PairedTest([("a", texts), ("b", worse)], {"BLEU": BLEU()}, streams, "bs", 1000)
    _, results = test()
    expected = results["BLEU"][1].p_value  # type: ignore[union-attr]
    references = [list(pair) for pair in zip(texts, several, strict=True)]
    assert METRICS["bleu"].chance(texts, worse, references) == expected


@pytest.mark.parametrize("share", [0.02, 0.1, 0.3])
def test_the_bootstrap_of_sums_is_that_of_sacrebleu(share: float) -> None:
    """The definition once more: resamples of indices, differences about their mean."""
    generator = np.random.default_rng(5)
    sums = np.stack([generator.integers(0, 4, 80), generator.integers(5, 9, 80)], 1).astype(float)
    other = sums.copy()
    other[: int(80 * share), 0] += 2
    indices = np.random.default_rng(SEED).integers(80, size=(1000, 80))

    def figures(of: NDArray[np.float64]) -> NDArray[np.float64]:
        total: NDArray[np.float64] = of[indices].sum(1)
        return np.asarray(total[:, 0] / total[:, 1])

    apart = np.abs(figures(sums) - figures(other))
    observed = abs(sums[:, 0].sum() / sums[:, 1].sum() - other[:, 0].sum() / other[:, 1].sum())
    expected = (np.sum(apart - apart.mean() > observed) + 1) / 1001
    assert bootstrap_chance(sums, other) == pytest.approx(expected)


def test_resamples_without_any_words_do_no_harm() -> None:
    metric = METRICS["word-error"]
    assert isinstance(metric, SegmentMetric)
    references = [["..."], ["a b"], ["-"]]
    assert 0 < metric.chance(["", "a b", ""], ["x", "a", "y"], references) <= 1
