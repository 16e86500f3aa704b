"""Level 2: free-running greedy outputs, which must be identical at fp32.

Below fp32, it is bounded which tokens are generated (`choices`), how many outputs differ (binomial
distributions), and how much the oracle prefers the tokens that are lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.reference_model import AutoregressiveModel
from dragoman.reference_model.decoding import uncached_logits
from dragoman.runtime import Model, Result
from dragoman.runtime.decoding.request import MAX_LOGITS, EncoderInput
from dragoman.runtime.format.parity import NOT_FINITE, Divergence, OnePassParity, TokenParity
from dragoman.runtime.speech.prompts import greedy_options
from dragoman.settings.generation import DEFAULT_BATCH_SIZE

from ..oracle import for_torch
from .choices import Choices, Rules

CHANCE = 1e-3
"""How improbable so few identical outputs of a right bundle must be, for the share that is measured
and for the number that follows from it."""

MARGIN_FACTOR = 4
"""The largest margin that may be lost, as a multiple of the largest error of a difference between
logits where they were compared. Those are the outputs of 64 inputs; among 11,548 words g2p-en loses
up to 1.8 times that error, in int8, and 1.0 times in int4."""


def greedy_results(
    model: Model, sources: Sequence[EncoderInput], limit: int, target_language: str | None
) -> list[Result]:
    """Decode sources greedily, whatever the bundle's own strategy is."""
    return model.generate(
        sources,
        greedy_options(model.manifest),
        max_new_tokens=limit,
        target_language=target_language,
    )


def results_of_first_windows(
    model: Model,
    sources: Sequence[EncoderInput],
    expected: Sequence[list[int]],
    results: Sequence[Result],
    limit: int,
) -> list[Result]:
    """Decode speech again, one window only, where its outputs differ from the oracle's.

    A model that dates its output although nobody asked is decoded on from there; the oracle is not.
    """
    found, outputs = list(results), bundle_outputs(results)
    if model.manifest.speech is None:
        return found
    options = greedy_options(model.manifest)
    for i, tokens in enumerate(expected):
        if outputs[i] == tokens or results[i].error is not None:
            continue
        window = list(model.stream(sources[i], options, max_new_tokens=limit))
        ended = bool(window) and window[-1].is_end
        found[i] = replace(
            results[i],
            tokens=tuple(token.id for token in window if not token.is_end),
            end_token=window[-1].id if ended else None,
            log_probability=sum(token.log_probability for token in window),
        )
    return found


def bundle_outputs(results: Sequence[Result]) -> list[list[int]]:
    """Take the tokens of results, including the end token if one is reached."""
    return [
        [*result.tokens, *([] if result.end_token is None else [result.end_token])]
        for result in results
    ]


def compare_tokens(
    oracle: AutoregressiveModel,
    sources: Sequence[EncoderInput],
    expected: list[list[int]],
    found: list[list[int]],
    choices: Choices | None,
    one_pass: OnePassParity | None,
    *,
    limit: int,
) -> TokenParity:
    """Compare free-running outputs with the oracle's.

    Args:
        choices: the bundle's choices along some of them; None at fp32, where all must be identical
    """
    differing = tuple(divergences(oracle, sources, expected, found, limit))
    identical = len(expected) - len(differing)
    consistent = one_pass is None or one_pass.passed
    if choices is None:
        passed = consistent and not differing
        return TokenParity(len(expected), identical, differing, passed, one_pass)
    share = upper_share(choices.changed, choices.sequences, CHANCE)
    least = len(expected) - most_events(len(expected), share, CHANCE)
    margin = MARGIN_FACTOR * choices.largest_error + (one_pass.allowed if one_pass else 0.0)
    explained = identical >= least and all(d.margin <= margin for d in differing)
    return TokenParity(
        len(expected),
        identical,
        differing,
        passed=consistent and explained,
        one_pass=one_pass,
        expected_identical=len(expected) * (1 - choices.changed / choices.sequences),
        least_identical=least,
        allowed_margin=margin,
    )


def divergences(
    oracle: AutoregressiveModel,
    sources: Sequence[EncoderInput],
    expected: list[list[int]],
    found: list[list[int]],
    limit: int,
) -> list[Divergence]:
    """Find the first step at which outputs differ, and the oracle's margin there."""
    pairs = zip(expected, found, strict=True)
    differing = [i for i, (tokens, other) in enumerate(pairs) if tokens != other]
    steps = {i: _first_difference(oracle, expected[i], found[i]) for i in differing}
    read = {
        i: [*oracle.prompt(for_torch(sources[i])), *expected[i][:step]]
        for i, (step, _, _) in steps.items()
    }
    measured = {}
    for batch in _of_equal_length(oracle, read):
        with torch.inference_mode():
            hidden = oracle.decoding([for_torch(sources[i]) for i in batch])
            logits = uncached_logits(oracle, hidden, [read[i] for i in batch]).numpy()
        for row, i in enumerate(batch):
            step, token, other = steps[i]
            rules = Rules.of(oracle, sources[i], limit)
            scores = rules.scores(logits[row : row + 1], expected[i], first=step)[0]
            margin = NOT_FINITE
            if 0 <= other < len(scores):
                margin = min(float(scores[token]) - float(scores[other]), NOT_FINITE)
            measured[i] = Divergence(i, step, token, other, margin)
    return [measured[i] for i in differing]


def _first_difference(
    oracle: AutoregressiveModel, expected: Sequence[int], found: Sequence[int]
) -> tuple[int, int, int]:
    """Find the first step that differs, and both tokens; a prefix ends where the other goes on."""
    end = oracle.config.end_token_id
    for step, (token, other) in enumerate(zip_longest(expected, found, fillvalue=end)):
        if token != other:
            return step, token, other
    return min(len(expected), len(found)), end, end


def _of_equal_length(
    oracle: AutoregressiveModel, read: Mapping[int, Sequence[int]]
) -> Iterator[list[int]]:
    groups = defaultdict(list)
    for i, tokens in read.items():
        groups[len(tokens)].append(i)
    for length, group in groups.items():
        rows = min(DEFAULT_BATCH_SIZE, MAX_LOGITS // (length * oracle.config.target_vocab_size))
        rows = 1 if oracle.config.takes_audio else max(1, rows)
        for first in range(0, len(group), rows):
            yield group[first : first + rows]


HALVINGS = 50


def upper_share(count: int, total: int, chance: float) -> float:
    """Compute the upper confidence limit of a share (Clopper and Pearson 1934).

    Args:
        chance: the probability that so few or fewer events occur if the share is the limit
    """
    if count >= total:
        return 1.0
    lower, upper = count / total, 1.0
    for _ in range(HALVINGS):
        middle = (lower + upper) / 2
        if float(_probabilities(total, middle)[: count + 1].sum()) > chance:
            lower = middle
        else:
            upper = middle
    return upper


def most_events(total: int, share: float, chance: float) -> int:
    """Return the smallest k such that more than k events occur with at most this probability."""
    if share >= 1:
        return total
    if share <= 0:
        return 0
    # Summed from the rare end, where a sum from the other one would have lost its digits.
    more = np.cumsum(_probabilities(total, share)[::-1])[::-1]
    return int(np.count_nonzero(more > chance)) - 1


def _probabilities(total: int, share: float) -> NDArray[np.float64]:
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, total + 1)))])
    events = np.arange(total + 1)
    ways = factorials[-1] - factorials - factorials[::-1]
    logarithms = ways + events * np.log(share) + (total - events) * np.log1p(-share)
    return np.asarray(np.exp(logarithms), np.float64)
