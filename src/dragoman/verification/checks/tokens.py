"""Level 2: free-running greedy output, identical at fp32."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import torch

from dragoman.optimize.compare import NOT_FINITE
from dragoman.reference_model import AutoregressiveModel
from dragoman.runtime import Model
from dragoman.runtime.decoding.batching import Encodable
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.records import Divergence, TokenParity
from dragoman.runtime.speech.prompts import greedy_options

from ..oracle import for_torch
from ..tolerances import TOLERANCES


def bundle_outputs(
    model: Model, sources: Sequence[Encodable], limit: int, target_language: str | None
) -> list[list[int]]:
    """Free-running greedy output of a bundle, including the end token if one is reached."""
    results = model.generate(
        sources,
        greedy_options(model.manifest),
        max_new_tokens=limit,
        target_language=target_language,
    )
    return [
        [*result.tokens, *([] if result.end_token is None else [result.end_token])]
        for result in results
    ]


def compare_tokens(
    oracle: AutoregressiveModel,
    sources: Sequence[Encodable],
    expected: list[list[int]],
    found: list[list[int]],
    precision: Precision,
    *,
    limit: int,
    largest_logit: float,
) -> TokenParity:
    """Below fp32, a divergence is accepted if the oracle's margin is so small that differences
    within the tolerance of level 1 explain it. A token that the generation settings forbid has an
    infinite margin and is never accepted.

    Args:
        expected: the oracle's outputs
        limit: the most new tokens
        largest_logit: the oracle's, in absolute value
    """
    divergences = [
        divergence(oracle, i, sources[i], tokens, other, limit)
        for i, (tokens, other) in enumerate(zip(expected, found, strict=True))
        if tokens != other
    ]
    explained = 2 * TOLERANCES[precision] * max(1.0, largest_logit)
    passed = not divergences or (
        precision != "fp32" and all(d.margin <= explained for d in divergences)
    )
    return TokenParity(
        sequences=len(expected),
        identical=len(expected) - len(divergences),
        divergences=tuple(divergences),
        passed=passed,
    )


def divergence(
    oracle: AutoregressiveModel,
    index: int,
    source: Encodable,
    expected: list[int],
    found: list[int],
    limit: int,
) -> Divergence:
    """The first step at which two outputs for a source differ, and the oracle's margin there."""
    config = oracle.config
    # An output that is a prefix of the other ends where the other has one more token.
    pairs = zip_longest(expected, found, fillvalue=config.end_token_id)
    step, (expected_token, found_token) = next(
        ((n, pair) for n, pair in enumerate(pairs) if pair[0] != pair[1]),
        (min(len(expected), len(found)), (config.end_token_id, config.end_token_id)),
    )
    generation = oracle.generation
    theirs = for_torch(source)
    prompt, new = oracle.prompt(theirs), expected[:step]
    with torch.inference_mode():
        logits = oracle.target_logits([theirs])(torch.tensor([prompt + new]))[0, -1]
    scores = generation.scores(
        logits,
        [int(token) for token in oracle.source_tokens(theirs)],
        prompt,
        new,
        end_tokens=generation.end_tokens(config.end_token_id),
        limit=limit,
    )
    margin = min(float(scores[expected_token] - scores[found_token]), NOT_FINITE)
    return Divergence(index, step, expected_token, found_token, margin)
