"""Bundles on ONNX Runtime generate what the reference model generates without a cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.reference_model import Transformer, greedy_uncached, pad
from dragoman.runtime import Model, Result

Pair = tuple[Transformer, Model]
Sources = list[list[int]]
RandomSources = Callable[..., Sources]
SlowGreedy = Callable[..., tuple[list[int], float]]


def with_end(results: list[Result], reference: Transformer) -> list[list[int]]:
    """Tokens as the oracle gives them, the end token included."""
    end = reference.config.end_token_id
    return [
        [*result.tokens, end] if result.finish_reason == "end" else list(result.tokens)
        for result in results
    ]


def test_the_oracle_s_outputs_differ_in_content_and_length(
    pair: Pair, random_sources: RandomSources
) -> None:
    """The other tests would mean little otherwise."""
    reference, _ = pair
    longest = reference.config.max_target_positions
    outputs = greedy_uncached(reference, random_sources(reference.config, 40), longest)
    ended = [output for output in outputs if output[-1] == reference.config.end_token_id]
    assert 5 <= len(ended) <= 35
    assert len({len(output) for output in outputs}) >= 5
    assert len({tuple(output) for output in outputs}) >= 10
    assert len({token for output in outputs for token in output}) >= 6


@pytest.mark.parametrize("count", [1, 7, 40])
def test_tokens_are_the_oracle_s(pair: Pair, random_sources: RandomSources, count: int) -> None:
    reference, model = pair
    longest = reference.config.max_target_positions
    sources = random_sources(reference.config, count, seed=count)
    results = model.generate(sources)
    assert with_end(results, reference) == greedy_uncached(reference, sources, longest)
    for result in results:
        assert reference.config.end_token_id not in result.tokens
        assert result.error is None
        assert result.finish_reason in ("end", "length")
        assert result.finish_reason == "end" or len(result.tokens) == longest


@pytest.mark.parametrize("limit", [1, 2, 9])
def test_a_lower_limit_cuts_the_same_tokens(
    pair: Pair, random_sources: RandomSources, limit: int
) -> None:
    reference, model = pair
    sources = random_sources(reference.config, 12)
    results = model.generate(sources, max_new_tokens=limit)
    assert with_end(results, reference) == greedy_uncached(reference, sources, limit)


def test_the_longest_source_and_the_last_position_work(pair: Pair) -> None:
    reference, model = pair
    config = reference.config
    sources = [[i % 11 + 3] * config.max_source_positions for i in range(8)]
    expected = greedy_uncached(reference, sources, config.max_target_positions)
    results = model.generate(sources, max_new_tokens=config.max_target_positions)
    assert with_end(results, reference) == expected


@pytest.mark.parametrize(
    "options",
    [{"max_batch_size": 3}, {"max_batch_tokens": 5}, {"max_batch_tokens": 70}, {}],
    ids=str,
)
def test_however_batched_the_results_are_in_the_order_of_the_inputs(
    pair: Pair, random_sources: RandomSources, options: dict[str, Any]
) -> None:
    reference, model = pair
    sources = random_sources(reference.config, 20, seed=3)
    expected = greedy_uncached(reference, sources, 10)
    results = model.generate(sources, max_new_tokens=10, **options)
    assert with_end(results, reference) == expected
    backwards = model.generate(sources[::-1], max_new_tokens=10, **options)
    assert with_end(backwards, reference) == expected[::-1]


def test_limits_relative_to_the_source_hold_for_each_row(
    pair: Pair, random_sources: RandomSources, slow_greedy: SlowGreedy
) -> None:
    """Rows of very different lengths in one batch, so that rows leave it again and again."""
    reference, model = pair
    sources = random_sources(reference.config, 16, seed=5)
    results = model.generate(sources, max_new_tokens_per_source_token=0.5)
    longest = reference.config.max_target_positions
    limits = [min(longest, -(-len(source) // 2)) for source in sources]
    assert len(set(limits)) >= 6
    for source, limit, output in zip(sources, limits, with_end(results, reference), strict=True):
        assert output == slow_greedy(reference, source, limit)[0]


def test_log_probabilities_of_the_chosen_tokens(
    pair: Pair, random_sources: RandomSources, slow_greedy: SlowGreedy
) -> None:
    reference, model = pair
    sources = random_sources(reference.config, 10, seed=6)
    results = model.generate(sources)
    longest = reference.config.max_target_positions
    for source, result in zip(sources, results, strict=True):
        _, expected = slow_greedy(reference, source, longest)
        assert result.log_probability == pytest.approx(expected, abs=1e-4)
        assert result.log_probability < 0


@pytest.mark.parametrize("minimum", [1, 6, 20])
def test_with_a_minimum_the_end_token_is_excluded_from_the_first_steps(
    pair: Pair, random_sources: RandomSources, slow_greedy: SlowGreedy, minimum: int
) -> None:
    reference, model = pair
    longest = reference.config.max_target_positions
    candidates = random_sources(reference.config, 40)
    free = greedy_uncached(reference, candidates, longest)
    by_length = sorted(range(40), key=lambda i: len(free[i]))
    assert len(free[by_length[0]]) <= 6, "the minimum changes something"
    sources = [candidates[i] for i in (*by_length[:5], by_length[20], by_length[-1])]
    expected = [slow_greedy(reference, s, longest, min_new_tokens=minimum) for s in sources]
    results = model.generate(sources, min_new_tokens=minimum)
    assert with_end(results, reference) == [tokens for tokens, _ in expected]
    for result, (_, log_probability) in zip(results, expected, strict=True):
        assert len(result.tokens) >= minimum
        assert result.log_probability == pytest.approx(log_probability, abs=1e-4)


def test_a_stream_gives_the_tokens_of_generate(pair: Pair, random_sources: RandomSources) -> None:
    reference, model = pair
    for source in random_sources(reference.config, 6, seed=7):
        (result,) = model.generate([source], min_new_tokens=2)
        streamed = list(model.stream(source, min_new_tokens=2))
        ends = [] if result.end_token is None else [result.end_token]
        assert [token.id for token in streamed] == [*result.tokens, *ends]
        assert [token.id for token in streamed if token.is_end] == ends
        total = sum(token.log_probability for token in streamed)
        assert total == pytest.approx(result.log_probability, abs=1e-4)
        if result.text is None:
            assert all(token.text is None for token in streamed)
        else:
            assert "".join(token.text or "" for token in streamed) == result.text


@torch.inference_mode()
def test_teacher_forced_logits_and_encoder_outputs_are_the_oracle_s(
    pair: Pair, random_sources: RandomSources
) -> None:
    reference, model = pair
    config = reference.config
    sources = random_sources(config, 5, seed=8)
    source, mask = pad(sources, config.pad_token_id)
    target = torch.randint(config.target_vocab_size, (5, config.max_target_positions))
    logits = model.backend.score(source.numpy(), mask.numpy(), target.numpy())
    np.testing.assert_allclose(logits, reference(source, mask, target).numpy(), atol=1e-4)

    encoded = model.backend.encode(source.numpy(), mask.numpy())
    for tensor in model.manifest.graphs["encoder"].outputs:
        assert tensor.layer is not None
        expected = reference.encode(source, mask)[tensor.layer][tensor.role == "cross_value"]
        for row, length in enumerate(len(tokens) for tokens in sources):
            np.testing.assert_allclose(
                encoded[tensor.name][row, :, :length], expected[row, :, :length], atol=1e-4
            )
