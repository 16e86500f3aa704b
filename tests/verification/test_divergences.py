"""The record of a divergence, by hand, and when one is excused."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

from dragoman.reference_model import GenerationConfig, Transformer, greedy_uncached
from dragoman.runtime.format.parity import (
    Divergence,
    OnePassParity,
    OtherChoice,
    Parity,
    TokenParity,
)
from dragoman.verification.checks import tokens as level_2
from dragoman.verification.checks.choices import Choices
from dragoman.verification.checks.tokens import compare_tokens
from dragoman.verification.verdict import describe_failure

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


def diverging(reference: Transformer, expected: list[int], found: list[int]) -> Divergence:
    """The record of one output, the last of five, that differs."""
    (divergence,) = level_2.divergences(
        reference, [SOURCE] * 5, [expected] * 5, [*[expected] * 4, found], LIMIT
    )
    return divergence


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
    divergence = diverging(reference, expected, found)
    logits = logits_after(reference, expected[:step])
    assert (divergence.input, divergence.step) == (4, step)
    assert (divergence.expected_token, divergence.found_token) == (expected[step], found[step])
    assert divergence.margin == pytest.approx(float(logits.max() - logits[found[step]]), abs=1e-6)
    assert divergence.margin > 0


def test_a_sequence_that_continues_where_the_oracles_ends(
    reference: Transformer, expected: list[int]
) -> None:
    divergence = diverging(reference, expected[:4], [*expected[:4], 9])
    logits = logits_after(reference, expected[:4])
    assert (divergence.step, divergence.expected_token, divergence.found_token) == (4, 2, 9)
    assert divergence.margin == pytest.approx(float(logits[2] - logits[9]), abs=1e-6)


def test_a_sequence_that_ends_where_the_oracles_continues(
    reference: Transformer, expected: list[int]
) -> None:
    divergence = diverging(reference, expected, expected[:3])
    logits = logits_after(reference, expected[:3])
    assert (divergence.step, divergence.expected_token) == (3, expected[3])
    assert divergence.found_token == reference.config.end_token_id
    assert divergence.margin == pytest.approx(float(logits.max() - logits[2]), abs=1e-6)


def test_divergences_of_several_steps_and_sources_keep_their_order(
    reference: Transformer, expected: list[int]
) -> None:
    """They are measured in batches of the same step."""
    other = [8, 2, 11]
    (output,) = greedy_uncached(reference, [other], 12)
    sources = [SOURCE, other, SOURCE, other]
    right = [expected, output, expected, output]
    found = [list(row) for row in right]
    for row, step in zip(found, (4, 1, 1, 0), strict=True):
        row[step] = other_than(row[step])
    together = level_2.divergences(reference, sources, right, found, LIMIT)
    assert [(d.input, d.step) for d in together] == [(0, 4), (1, 1), (2, 1), (3, 0)]
    for i, divergence in enumerate(together):
        (single,) = level_2.divergences(reference, [sources[i]], [right[i]], [found[i]], LIMIT)
        assert dataclasses.replace(single, input=i, margin=0.0) == dataclasses.replace(
            divergence, margin=0.0
        )
        assert single.margin == pytest.approx(divergence.margin, abs=1e-5)


def test_a_number_that_is_no_token_is_never_excused(
    reference: Transformer, expected: list[int]
) -> None:
    for token in (-1, 19, 10**6):
        found = [*expected[:2], token]
        assert diverging(reference, expected, found).margin > 1e200


def test_identical_sequences_leave_no_record(reference: Transformer, expected: list[int]) -> None:
    tokens = compare_tokens(
        reference, [SOURCE] * 3, [expected] * 3, [expected] * 3, None, None, limit=LIMIT
    )
    assert (tokens.sequences, tokens.identical, tokens.divergences) == (3, 3, ())
    assert tokens.passed


ONE_OF_TWO = Choices(sequences=2, changed=1, largest_error=0.0)
"""Half of the outputs are expected to differ, and of so few all may."""


def own(*, passed: bool = True, allowed: float = 0.0) -> OnePassParity:
    return OnePassParity(2, 12, 0, 0.0, allowed, None, 0.0, 0.0, passed)


def test_below_fp32_a_divergence_is_excused_by_a_small_margin_only(
    reference: Transformer, expected: list[int]
) -> None:
    """Four times the largest error that was measured, and what rounding explains between one pass
    and steps. (This was a multiple of the largest logit.)"""
    found = [*expected[:2], int(logits_after(reference, expected[:2]).argmin())]
    margin = diverging(reference, expected, found).margin
    assert margin > 1
    for factor, passes in ((1.01, True), (0.99, False)):
        choices = dataclasses.replace(ONE_OF_TWO, largest_error=factor * (margin - 0.5) / 4)
        tokens = compare_tokens(
            reference,
            [SOURCE, SOURCE],
            [expected, expected],
            [expected, found],
            choices,
            own(allowed=0.5),
            limit=LIMIT,
        )
        assert tokens.passed is passes
        assert (tokens.sequences, tokens.identical) == (2, 1)
        (divergence,) = tokens.divergences
        assert divergence.input == 1
        assert tokens.allowed_margin == pytest.approx(0.5 + factor * (margin - 0.5))
    at_fp32 = compare_tokens(reference, [SOURCE], [expected], [found], None, None, limit=LIMIT)
    assert not at_fp32.passed


def test_a_token_that_the_rules_forbid_is_never_excused(
    reference: Transformer, expected: list[int]
) -> None:
    """Whatever its logit, which may be the largest."""
    ruled = copy.copy(reference)
    ruled.generation = GenerationConfig(suppressed_token_ids=(expected[2],))
    (allowed,) = greedy_uncached(ruled, [SOURCE], 12)
    choices = dataclasses.replace(ONE_OF_TWO, largest_error=1e9)
    tokens = compare_tokens(ruled, [SOURCE], [allowed], [expected], choices, None, limit=LIMIT)
    assert tokens.divergences[0].found_token == expected[2]
    assert not tokens.passed


def several(
    reference: Transformer, expected: list[int], differing: int, of: int, choices: Choices
) -> TokenParity:
    found = [*expected[:2], other_than(expected[2])]
    outputs = [*[found] * differing, *[expected] * (of - differing)]
    return compare_tokens(
        reference, [SOURCE] * of, [expected] * of, outputs, choices, own(), limit=LIMIT
    )


def test_the_share_of_identical_outputs_is_bounded(
    reference: Transformer, expected: list[int]
) -> None:
    """By hand: if none of 64 differs, 10.23 % is the largest share that is no surprise, since
    0.8977 to the 64th is 0.001. Of 40 outputs more than 11 then differ with a probability of
    0.00047, the sum of C(40, n) 0.1023^n 0.8977^(40 - n) beyond 11; more than 10, of 0.0018."""
    choices = Choices(sequences=64, changed=0, largest_error=1e9)
    within = several(reference, expected, 11, 40, choices)
    assert within.passed
    assert (within.expected_identical, within.least_identical) == (40, 29)
    beyond = several(reference, expected, 12, 40, choices)
    assert (beyond.identical, beyond.passed) == (28, False)
    assert described(beyond) == (
        "parity failed: 12 of 40 sequences differ: by the distributions of the next token 40 are "
        "expected to be identical, at least 29, found 28"
    )


def test_where_rounding_leaves_nothing_as_it_is_nothing_is_decided(
    reference: Transformer, expected: list[int]
) -> None:
    """Neither passed nor failed: not even one output has to be identical."""
    choices = Choices(sequences=4, changed=4, largest_error=1e9)
    tokens = several(reference, expected, 4, 4, choices)
    assert (tokens.expected_identical, tokens.least_identical) == (0, 0)
    assert tokens.passed and tokens.undecided
    assert not several(reference, expected, 3, 4, choices).undecided
    assert not TokenParity(0, 0, (), True).undecided  # of an encoder-only model


def test_tokens_that_the_bundle_s_own_scores_do_not_choose_fail(
    reference: Transformer, expected: list[int]
) -> None:
    choices = Choices(sequences=64, changed=0, largest_error=1e9)
    one_pass = dataclasses.replace(
        own(passed=False, allowed=0.2),
        other_choices=3,
        worst=OtherChoice(1, 5, 12, 7, 8.31, "words.txt, line 2"),
    )
    tokens = compare_tokens(
        reference, [SOURCE], [expected], [expected], choices, one_pass, limit=LIMIT
    )
    assert not tokens.passed
    assert described(tokens) == (
        "parity failed: 3 of 12 generated tokens are not what the bundle's own scores choose; the "
        "worst, words.txt, line 2, at step 5: token 7 in place of 12, whose score is 8.31 higher, "
        "allowed 0.2"
    )


def described(tokens: TokenParity) -> str:
    return describe_failure(Parity(False, "oracle", "inputs", "onnxruntime", (), tokens))
