"""Level 2 for bundles that decode with beams by default: their best hypotheses, and the scores.

Samples have no parity: greedy decoding is what level 2 compares of a model that is sampled from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from dragoman.reference_model import AutoregressiveModel, beam_search_uncached
from dragoman.runtime import Model
from dragoman.runtime.decoding.batching import Encodable
from dragoman.runtime.decoding.rejection import NO_OUTPUT
from dragoman.runtime.format.records import BeamParity
from dragoman.runtime.speech.prompts import prompt_options

from ..oracle import for_torch

MOST_SOURCES, MOST_TOKENS = 8, 48
"""The oracle computes every beam's whole target anew at every step."""

SCORE_TOLERANCE = 1e-4
"""Of a score, divided by the oracle's if that is above 1."""

TIE = 1e-5
"""Hypotheses with scores this close are equally good."""


def compare_beams(
    model: Model,
    oracle: AutoregressiveModel,
    sources: Sequence[Encodable],
    limit: int,
    target_language: str | None,
) -> BeamParity | None:
    """Compare the best hypothesis of each of some sources. At fp32 all must be the same, but for
    ties; below, how many are is a figure.

    Args:
        limit: the most new tokens

    Returns:
        None if the bundle does not decode with beams by default
    """
    settings = model.manifest.generation
    if settings.num_beams == 1:
        return None
    chosen = np.linspace(0, len(sources) - 1, min(len(sources), MOST_SOURCES)).astype(int)
    some, limit = [sources[i] for i in chosen], min(limit, MOST_TOKENS)
    found = model.generate(
        some,
        prompt_options(model.manifest),
        max_new_tokens=limit,
        target_language=target_language,
    )
    generation = dataclasses.replace(
        oracle.generation,
        num_beams=settings.num_beams,
        length_penalty=settings.length_penalty,
        early_stopping=settings.early_stopping,
    )
    searched = beam_search_uncached(
        oracle, [for_torch(source) for source in some], limit, generation=generation
    )
    identical, ties, differences = 0, 0, []
    for result, hypotheses in zip(found, searched, strict=True):
        if not hypotheses:  # the rules leave no token
            identical += (result.error or "").endswith(NO_OUTPUT)
            continue
        best = hypotheses[0]
        end = [] if result.end_token is None else [result.end_token]
        difference = abs(result.score - best.score)
        if [*result.tokens, *end] == list(best.tokens):
            identical += 1
            differences.append(difference / max(1.0, abs(best.score)))
        elif difference <= TIE:
            ties += 1
    largest = max(differences, default=0.0)
    same = identical + ties == len(some) and largest <= SCORE_TOLERANCE
    return BeamParity(
        beams=settings.num_beams,
        sequences=len(some),
        identical=identical,
        ties=ties,
        score_difference=largest,
        passed=model.manifest.precision != "fp32" or same,
    )
