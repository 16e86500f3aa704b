"""Level 2: free-running greedy output, identical at fp32.

Below fp32 some outputs may differ, as far as the bundle's own distributions along the oracle's
outputs explain it. Three things are bounded: which tokens it generates (see `one_pass`), how many
outputs differ (see `shares`), and how much the oracle prefers the tokens that are lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

import torch

from dragoman.optimize.compare import NOT_FINITE
from dragoman.reference_model import AutoregressiveModel
from dragoman.runtime import Model, Result
from dragoman.runtime.decoding.batching import MAX_LOGITS, Encodable
from dragoman.runtime.decoding.options import DEFAULT_BATCH_SIZE
from dragoman.runtime.format.records import Divergence, OnePassParity, TokenParity
from dragoman.runtime.speech.prompts import greedy_options

from ..oracle import for_torch
from .choices import Choices, Rules
from .shares import most_events, upper_share

CHANCE = 1e-3
"""How improbable it must be that so few outputs of a right bundle are identical: of the share that
is measured, and of the number that follows from it."""

MARGIN_FACTOR = 4
"""The largest margin that may be lost, as a multiple of the largest error of a difference between
logits where they were compared. Those are the outputs of 64 inputs; among 11,548 words g2p-en loses
up to 1.8 times that error, in int8, and 1.0 times in int4."""


def greedy_results(
    model: Model, sources: Sequence[Encodable], limit: int, target_language: str | None
) -> list[Result]:
    """Decode sources greedily, whatever the bundle's own strategy is."""
    return model.generate(
        sources,
        greedy_options(model.manifest),
        max_new_tokens=limit,
        target_language=target_language,
    )


def bundle_outputs(results: Sequence[Result]) -> list[list[int]]:
    """The tokens of results, including the end token if one is reached."""
    return [
        [*result.tokens, *([] if result.end_token is None else [result.end_token])]
        for result in results
    ]


def compare_tokens(
    oracle: AutoregressiveModel,
    sources: Sequence[Encodable],
    expected: list[list[int]],
    found: list[list[int]],
    choices: Choices | None,
    one_pass: OnePassParity | None,
    *,
    limit: int,
) -> TokenParity:
    """Compare free-running outputs with the oracle's.

    Args:
        expected: the oracle's outputs
        choices: below fp32, the bundle's choices along some of them; None at fp32, where all
            outputs must be identical
        one_pass: the bundle compared with itself; None: it was not
        limit: the most new tokens
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
    sources: Sequence[Encodable],
    expected: list[list[int]],
    found: list[list[int]],
    limit: int,
) -> list[Divergence]:
    """The first step at which each pair of different outputs differs, and the oracle's margin
    there.

    Args:
        limit: the most new tokens
    """
    pairs = zip(expected, found, strict=True)
    differing = [i for i, (tokens, other) in enumerate(pairs) if tokens != other]
    steps = {i: _first_difference(oracle, expected[i], found[i]) for i in differing}
    measured = {}
    for batch in _of_equal_length(oracle, sources, expected, {i: steps[i][0] for i in differing}):
        prompts = [oracle.prompt(for_torch(sources[i])) for i in batch]
        read = [
            [*prompt, *expected[i][: steps[i][0]]] for prompt, i in zip(prompts, batch, strict=True)
        ]
        with torch.inference_mode():
            target_logits = oracle.target_logits([for_torch(sources[i]) for i in batch])
            logits = target_logits(torch.tensor(read))[:, -1].numpy()
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
    """The step, the expected token and the one found.

    An output that is a prefix of the other ends where the other has one more token.
    """
    end = oracle.config.end_token_id
    for step, (token, other) in enumerate(zip_longest(expected, found, fillvalue=end)):
        if token != other:
            return step, token, other
    return min(len(expected), len(found)), end, end


def _of_equal_length(
    oracle: AutoregressiveModel,
    sources: Sequence[Encodable],
    expected: Sequence[Sequence[int]],
    steps: Mapping[int, int],
) -> Iterator[list[int]]:
    """Batches of sources whose targets up to a step have the same length."""
    groups = defaultdict(list)
    for i, step in steps.items():
        groups[len(oracle.prompt(for_torch(sources[i]))) + step].append(i)
    for length, group in groups.items():
        rows = min(DEFAULT_BATCH_SIZE, MAX_LOGITS // (length * oracle.config.target_vocab_size))
        rows = 1 if oracle.config.takes_audio else max(1, rows)
        for first in range(0, len(group), rows):
            yield group[first : first + rows]
