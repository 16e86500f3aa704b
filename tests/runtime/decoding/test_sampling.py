"""Tokens are drawn with the exact probabilities, by random numbers of seed and step only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from dragoman.runtime.decoding.greedy_and_sampling import BestSample, Sample
from dragoman.runtime.decoding.running_batch import DecodedJob, Job
from dragoman.runtime.decoding.scheduler import Scheduler
from dragoman.runtime.decoding.search import TokenSequence
from dragoman.settings.generation_settings import GenerationSettings

from .scripted import END, START, ScriptedBackend, decoded, random_logits, request, spec

VOCABULARY = 12


def sequences_of(
    logits: Any, strategies: list[Sample], limit: int = 1, rows: int = 64
) -> list[TokenSequence]:
    scheduler: Scheduler[int] = Scheduler(
        ScriptedBackend(logits), spec(VOCABULARY), rows=rows, tokens=10**6
    )
    for key, strategy in enumerate(strategies):
        scheduler.add(Job(key, request([3 + key % 2], limit), strategy))
    found: dict[int, TokenSequence] = {}
    for outcome in scheduler.run():
        assert isinstance(outcome, DecodedJob)
        (found[outcome.job.key],) = outcome.sequences
    return [found[key] for key in range(len(strategies))]


@pytest.mark.parametrize(
    "sample",
    [
        Sample(0),
        Sample(0, temperature=0.7),
        Sample(0, temperature=2.5),
        Sample(0, top_k=4),
        Sample(0, top_p=0.8),
        Sample(0, min_p=0.1),
        Sample(0, temperature=1.5, top_k=6, top_p=0.9, min_p=0.05),
    ],
    ids=str,
)
def test_tokens_occur_as_often_as_their_probability_says(sample: Sample) -> None:
    """Chi-squared over 4000 draws with fixed seeds: 99.9 % of right samplers stay below."""
    scores = random_logits(VOCABULARY)((3,), (START,))
    expected = hugging_face(scores, sample)
    counts = np.zeros(VOCABULARY)
    for seed in range(4000):
        drawn = Sample(seed, 0, sample.temperature, sample.top_k, sample.top_p, sample.min_p)
        cumulative = np.cumsum(drawn.probabilities(scores))
        counts[np.searchsorted(cumulative, drawn.uniform(1) * cumulative[-1], side="right")] += 1
    possible = expected > 0
    assert counts[~possible].sum() == 0
    expected_counts = 4000 * expected[possible]
    statistic = ((counts[possible] - expected_counts) ** 2 / expected_counts).sum()
    limits = {1: 10.8, 2: 13.8, 3: 16.3, 4: 18.5, 5: 20.5, 6: 22.5, 7: 24.3, 8: 26.1, 9: 27.9}
    limits |= {10: 29.6, 11: 31.3}
    assert statistic < limits[int(possible.sum()) - 1]


def test_sequences_of_a_model_occur_as_often_as_their_probability_says() -> None:
    """Of two tokens each, through the loop, rows of two sources side by side."""
    logits = random_logits(VOCABULARY)
    sequences = sequences_of(logits, [Sample(seed) for seed in range(3000)], limit=2, rows=500)
    for source in (0, 1):
        first = _softmax(logits((3 + source,), (START,)))
        best = int(first.argmax())
        second = _softmax(logits((3 + source,), (START, best)))
        mine = [sequence.row.tokens[1:] for sequence in sequences[source::2]]
        share = np.mean([tokens[0] == best for tokens in mine])
        assert share == pytest.approx(first[best], abs=4 * 0.5 / np.sqrt(1500))
        follow = [tokens[1] for tokens in mine if tokens[0] == best]
        assert np.mean([token == second.argmax() for token in follow]) == pytest.approx(
            second.max(), abs=4 * 0.5 / np.sqrt(len(follow))
        )


def test_a_draw_depends_on_its_seed_and_step_alone() -> None:
    logits = random_logits(VOCABULARY, end=-2)
    strategies = [Sample(key % 7, key // 28) for key in range(56)]
    together = sequences_of(logits, strategies, limit=9)
    in_pairs = sequences_of(logits, strategies, limit=9, rows=3)
    assert [d.row.tokens for d in together] == [d.row.tokens for d in in_pairs]
    keys = [(s.seed, s.index, key % 2) for key, s in enumerate(strategies)]
    again = dict(zip(keys, together, strict=True))
    for key, sequence in zip(keys, together, strict=True):
        assert sequence.row.tokens == again[key].row.tokens
    assert len({tuple(sequence.row.tokens) for sequence in together}) > 20


def test_without_a_seed_every_request_has_numbers_of_its_own() -> None:
    logits = random_logits(VOCABULARY, end=-9)
    sequences = sequences_of(logits, [Sample(None)] * 8, limit=12)[::2]
    assert len({tuple(sequence.row.tokens) for sequence in sequences}) == 4


@pytest.mark.parametrize("sample", [Sample(0, temperature=5e-324), Sample(0, top_p=0.0)], ids=str)
def test_the_narrowest_distribution_is_that_of_greedy_search(sample: Sample) -> None:
    scores = random_logits(VOCABULARY)((3,), (START,))
    expected = np.zeros(VOCABULARY)
    expected[scores.argmax()] = 1
    np.testing.assert_array_equal(sample.probabilities(scores), expected)


def test_a_log_probability_is_the_model_s_own() -> None:
    logits = random_logits(VOCABULARY)
    (sequence,) = sequences_of(logits, [Sample(3, temperature=0.3, top_k=3)], limit=6)
    for step, log_probability in enumerate(sequence.log_probabilities):
        history = tuple(sequence.row.tokens[: 1 + step])
        expected = np.log(_softmax(logits((3,), history)))[sequence.row.tokens[1 + step]]
        assert log_probability == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("vocabulary", [5, 300, 3000])
@pytest.mark.parametrize(
    "filters",
    [
        {"top_k": 1},
        {"top_k": 4, "temperature": 0.5},
        {"top_k": 10**6},
        {"top_p": 0.01},
        {"top_p": 0.5},
        {"top_p": 0.999},
        {"min_p": 0.2},
        {"min_p": 1.0},
        {"temperature": 1.7, "top_k": 50, "top_p": 0.6, "min_p": 0.02},
    ],
    ids=str,
)
def test_filters_are_those_of_hugging_face(vocabulary: int, filters: dict[str, Any]) -> None:
    for seed in range(4):
        values = np.random.default_rng(seed).normal(0, 1 + seed, vocabulary).astype(np.float32)
        sample = Sample(0, **filters)
        np.testing.assert_allclose(
            sample.probabilities(values), hugging_face(values, sample), atol=1e-6
        )


def test_a_hand_worked_nucleus() -> None:
    """Of 0.5, 0.3, 0.15 and 0.05: 0.8 needs two, 0.81 three."""
    scores = np.log(np.array([0.15, 0.5, 0.05, 0.3], np.float32))
    np.testing.assert_allclose(
        Sample(0, top_p=0.79).probabilities(scores), [0, 0.625, 0, 0.375], rtol=1e-5
    )
    np.testing.assert_allclose(
        Sample(0, top_p=0.81).probabilities(scores) * 0.95, [0.15, 0.5, 0, 0.3], rtol=1e-5
    )
    np.testing.assert_allclose(
        Sample(0, min_p=0.4).probabilities(scores) * 0.8, [0, 0.5, 0, 0.3], rtol=1e-5
    )


def test_suppressed_tokens_are_not_drawn() -> None:
    backend = ScriptedBackend(random_logits(VOCABULARY), suppressed=range(3, 11))
    scheduler: Scheduler[int] = Scheduler(backend, spec(VOCABULARY), rows=64, tokens=10**6)
    from dragoman.settings.generation_settings import GenerationSettings

    settings = GenerationSettings(suppressed_token_ids=tuple(range(3, 11)), min_new_tokens=3)
    for seed in range(40):
        scheduler.add(Job(seed, request([3], 5, settings=settings), Sample(seed)))
    for outcome in scheduler.run():
        assert isinstance(outcome, DecodedJob)
        tokens = outcome.sequences[0].row.tokens[1:]
        assert not set(tokens) & set(range(3, 11))
        assert END not in tokens[:3]


def hugging_face(scores: NDArray[np.float32], sample: Sample) -> NDArray[np.float64]:
    ids, values = torch.zeros((1, 1), dtype=torch.long), torch.from_numpy(scores[None].copy())
    kinds: list[Any] = [TemperatureLogitsWarper(sample.temperature)]
    if sample.top_k:
        kinds.append(TopKLogitsWarper(sample.top_k))
    if sample.top_p < 1:
        kinds.append(TopPLogitsWarper(sample.top_p))
    if sample.min_p:
        kinds.append(MinPLogitsWarper(sample.min_p))
    for warper in kinds:
        values = warper(ids, values)
    probabilities: NDArray[np.float64] = torch.softmax(values.double(), -1)[0].numpy()
    return probabilities


def _softmax(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    powers = np.exp(scores.astype(np.float64) - scores.max())
    result: NDArray[np.float64] = powers / powers.sum()
    return result


@pytest.mark.parametrize("forced", [None, 5])
@pytest.mark.parametrize("prefix", [(), ((3, 6), 8)])
def test_the_best_sample_is_the_most_probable_of_those_decoded_alone(
    forced: int | None, prefix: tuple[Any, ...]
) -> None:
    backend = ScriptedBackend(random_logits(VOCABULARY, end=1.0))
    one = request(
        [3, 4],
        7,
        prefix=prefix,
        settings=GenerationSettings(forced_first_token_id=forced, repetition_penalty=1.2),
    )
    lengths = set()
    for seed in range(6):
        samples = [Sample(seed, number, temperature=1.3) for number in range(5)]
        alone = [
            found for (found,) in decoded(backend, [Job(n, one, s) for n, s in enumerate(samples)])
        ]
        (best, *others) = decoded(backend, [Job(0, one, BestSample(samples))])[0]
        ranked = sorted(alone, key=lambda s: -s.score / max(1, len(s.tokens)))
        assert [s.row.tokens for s in (best, *others)] == [s.row.tokens for s in ranked]
        assert best.log_probabilities == pytest.approx(ranked[0].log_probabilities, abs=1e-5)
        lengths |= {len(s.row.tokens) for s in alone}
    assert len(lengths) > 2  # they end at different steps
