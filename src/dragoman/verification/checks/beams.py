"""Level 2 for bundles that decode with beams by default: their best hypotheses and scores.

At fp32 the hypotheses must be the oracle's. In every precision a hypothesis's score must be what
the bundle's own log-probabilities give, under the checkpoint's rules and length penalty. Models
that are sampled from are compared by greedy decoding.
"""

from collections.abc import Sequence

import numpy as np

from dragoman.reference_model import AutoregressiveModel, beam_search_uncached
from dragoman.runtime import Model, Result
from dragoman.runtime.decoding.request import EncoderInput
from dragoman.runtime.decoding.results import NO_OUTPUT
from dragoman.runtime.format.parity import NOT_FINITE, BeamParity
from dragoman.runtime.speech.prompts import prompt_options

from ..oracle import evenly, for_torch
from .choices import MEAN_SHARE, Rules, own_logits
from .tokens import bundle_outputs

MOST_SOURCES, MOST_TOKENS = 8, 48
"""The oracle computes the whole target of every beam at every step."""

SCORE_TOLERANCE = 1e-4
"""The tolerance of a score, relative to max(1, the oracle's score)."""

TIE = 1e-5
"""Scores this close differ by rounding: hypotheses with such scores are equally good, and a search
that kept one of two such candidates may as well have kept the other."""


def compare_beams(
    model: Model,
    oracle: AutoregressiveModel,
    sources: Sequence[EncoderInput],
    limit: int,
    target_language: str | None,
    slack: float,
) -> BeamParity | None:
    """Compare the best hypothesis of each of some sources.

    At fp32 all must be the same, but for ties, in the end or within the oracle's search. Below fp32
    their number is a figure, and the scores are judged.

    Args:
        oracle: its generation settings apply in place of the manifest's
        slack: the tolerance of a difference between scores, see `choices.rounding`

    Returns:
        None if the model does not decode with beams by default
    """
    if oracle.generation.num_beams == 1:
        return None
    some = [sources[i] for i in evenly(len(sources), MOST_SOURCES)]
    limit = min(limit, MOST_TOKENS)
    found = model.generate(
        some, prompt_options(model.manifest), max_new_tokens=limit, target_language=target_language
    )
    searched = beam_search_uncached(oracle, list(map(for_torch, some)), limit)
    identical, ties, failures, differences = 0, 0, 0, []
    outputs = bundle_outputs(found)
    for result, output, hypotheses in zip(found, outputs, searched, strict=True):
        if result.error is not None and not result.error.endswith(NO_OUTPUT):
            failures += 1
            continue
        if not hypotheses:  # the rules leave no token
            identical += result.error is not None
            continue
        best = hypotheses[0]
        difference = abs(result.score - best.score)
        if output == list(best.tokens):
            identical += 1
            differences.append(difference / max(1.0, abs(best.score)))
        elif min(difference, best.margin) <= TIE:
            ties += 1
    largest = max(differences, default=0.0)
    same = identical + ties == len(some) and largest <= SCORE_TOLERANCE
    own_difference, own_allowed = _own_scores(model, oracle, some, found, limit, slack)
    judged = model.manifest.precision != "fp32" or same
    return BeamParity(
        beams=oracle.generation.num_beams,
        sequences=len(some),
        identical=identical,
        ties=ties,
        score_difference=largest,
        passed=judged and not failures and own_difference <= own_allowed,
        own_difference=own_difference,
        own_allowed=own_allowed,
    )


def _own_scores(
    model: Model,
    oracle: AutoregressiveModel,
    sources: Sequence[EncoderInput],
    found: Sequence[Result],
    limit: int,
    slack: float,
) -> tuple[float, float]:
    """Compare reported scores with those of the bundle's own log-probabilities in one pass.

    Log-probabilities of single tokens may be as far apart as `slack`, and a tenth of it on average.

    Returns:
        the difference and its limit, for the hypothesis with the largest excess
    """
    outputs = {i: tokens for i, tokens in enumerate(bundle_outputs(found)) if tokens}
    rules = {i: Rules.of(oracle, sources[i], limit) for i in outputs}
    prompts = {i: rules[i].prompt for i in outputs}
    worst = (0.0, slack)
    for i, logits in own_logits(model, sources, prompts, outputs):
        tokens, length = outputs[i], len(outputs[i])
        shifted = logits - logits.max(axis=-1, keepdims=True)
        normalizers = np.log(np.exp(shifted).sum(axis=-1, keepdims=True, dtype=np.float64))
        scores = rules[i].scores(np.asarray(shifted - normalizers, np.float32), tokens)
        total = float(scores[np.arange(length), tokens].astype(np.float64).sum())
        power = float(length) ** oracle.generation.length_penalty
        difference = abs(found[i].score - total / power)
        difference = difference if np.isfinite(difference) else NOT_FINITE
        allowed = slack * (1 + MEAN_SHARE * length) / power
        if difference * worst[1] > worst[0] * allowed:
            worst = (difference, allowed)
    return worst
