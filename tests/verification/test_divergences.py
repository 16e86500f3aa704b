"""The record of a divergence, by hand, and when one is excused."""

from __future__ import annotations

import copy

import pytest
import torch

from dragoman.reference_model import GenerationConfig, Transformer, greedy_uncached
from dragoman.runtime.format.manifest import Precision
from dragoman.verification.checks import tokens as level_2
from dragoman.verification.checks.tokens import compare_tokens

SOURCE = [3, 1, 4, 1, 5]
LIMIT = 99


def logits_after(reference: Transformer, prefix: list[int]) -> torch.Tensor:
    tokens = torch.tensor([SOURCE])
    target = torch.tensor([[reference.config.start_token_id, *prefix]])
    with torch.inference_mode():
        logits: torch.Tensor = reference(tokens, torch.ones(1, 5).bool(), target)
    return logits[0, -1]


def other_than(*tokens: int) -> int:
    return next(t for t in range(3, 19) if t not in tokens)


@pytest.fixture
def expected(reference: Transformer) -> list[int]:
    (output,) = greedy_uncached(reference, [SOURCE], 12)
    assert len(output) >= 6
    return output


@pytest.mark.parametrize("step", [0, 2, 5])
def test_step_tokens_and_margin(reference: Transformer, expected: list[int], step: int) -> None:
    found = list(expected)
    found[step] = other_than(expected[step])
    found[step + 1 :] = [7, 7]  # what follows is another sequence altogether
    divergence = level_2.divergence(reference, 4, SOURCE, expected, found, LIMIT)
    logits = logits_after(reference, expected[:step])
    assert (divergence.input, divergence.step) == (4, step)
    assert (divergence.expected_token, divergence.found_token) == (expected[step], found[step])
    assert divergence.margin == pytest.approx(float(logits.max() - logits[found[step]]), abs=1e-6)
    assert divergence.margin > 0


def test_a_sequence_that_continues_where_the_oracles_ends(
    reference: Transformer, expected: list[int]
) -> None:
    divergence = level_2.divergence(reference, 0, SOURCE, expected[:4], [*expected[:4], 9], LIMIT)
    logits = logits_after(reference, expected[:4])
    assert (divergence.step, divergence.expected_token, divergence.found_token) == (4, 2, 9)
    assert divergence.margin == pytest.approx(float(logits[2] - logits[9]), abs=1e-6)


def test_a_sequence_that_ends_where_the_oracles_continues(
    reference: Transformer, expected: list[int]
) -> None:
    divergence = level_2.divergence(reference, 0, SOURCE, expected, expected[:3], LIMIT)
    logits = logits_after(reference, expected[:3])
    assert (divergence.step, divergence.expected_token) == (3, expected[3])
    assert divergence.found_token == reference.config.end_token_id
    assert divergence.margin == pytest.approx(float(logits.max() - logits[2]), abs=1e-6)


def test_identical_sequences_leave_no_record(reference: Transformer, expected: list[int]) -> None:
    tokens = compare_tokens(
        reference,
        [SOURCE] * 3,
        [expected] * 3,
        [expected] * 3,
        "fp32",
        limit=LIMIT,
        largest_logit=1.0,
    )
    assert (tokens.sequences, tokens.identical, tokens.divergences) == (3, 3, ())
    assert tokens.passed


def test_below_fp32_a_divergence_is_excused_by_a_small_margin_only(
    reference: Transformer, expected: list[int]
) -> None:
    found = [*expected[:2], int(logits_after(reference, expected[:2]).argmin())]
    margin = level_2.divergence(reference, 1, SOURCE, expected, found, LIMIT).margin
    assert margin > 1  # so that the logits it takes to excuse it are large
    halves: tuple[tuple[Precision, float], ...] = (("fp16", 2 * 1e-2), ("bf16", 2 * 8e-2))
    for precision, allowed in halves:
        for largest_logit, passes in ((margin / allowed * 1.01, True), (margin / allowed, None)):
            tokens = compare_tokens(
                reference,
                [SOURCE, SOURCE],
                [expected, expected],
                [expected, found],
                precision,
                limit=LIMIT,
                largest_logit=largest_logit * (1 if passes else 0.99),
            )
            assert tokens.passed == bool(passes)
            assert (tokens.sequences, tokens.identical) == (2, 1)
            (divergence,) = tokens.divergences
            assert divergence.input == 1
    at_fp32 = compare_tokens(
        reference, [SOURCE], [expected], [found], "fp32", limit=LIMIT, largest_logit=margin * 1e9
    )
    assert not at_fp32.passed


def test_a_token_that_the_rules_forbid_is_never_excused(
    reference: Transformer, expected: list[int]
) -> None:
    """Whatever its logit, which may be the largest."""
    ruled = copy.copy(reference)
    ruled.generation = GenerationConfig(suppressed_token_ids=(expected[2],))
    (allowed,) = greedy_uncached(ruled, [SOURCE], 12)
    tokens = compare_tokens(
        ruled, [SOURCE], [allowed], [expected], "int4", limit=LIMIT, largest_logit=1e9
    )
    assert tokens.divergences[0].found_token == expected[2]
    assert not tokens.passed
