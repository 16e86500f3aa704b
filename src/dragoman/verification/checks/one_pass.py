"""Level 2: a bundle compared with itself: what it generates is what it scores.

Every token of a free-running output must be the choice of the bundle's own scores along that
output, computed in one pass, and the log-probability that decoding reports must be theirs. What
rounding explains is known, whatever it did to the weights, and no oracle is needed. See `choices`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dragoman.optimize.compare import NOT_FINITE
from dragoman.reference_model import AutoregressiveModel
from dragoman.runtime import Model, Result
from dragoman.runtime.decoding.batching import Encodable
from dragoman.runtime.format.records import OnePassParity, OtherChoice
from dragoman.runtime.scoring.teacher_forcing import log_probabilities_of

from .choices import Rules, Scores, own_logits

MOST_IDENTICAL = 512
"""The most outputs that are compared of those that are the oracle's anyway."""

MEAN_SHARE = 0.1
"""How far log-probabilities may be from those of one pass on average, as a share of what one may
be. Right bundles reach 0.01; what is wrong with log-probabilities is wrong with all of them."""


def compare_one_pass(
    model: Model,
    oracle: AutoregressiveModel,
    sources: Sequence[Encodable],
    expected: Sequence[list[int]],
    found: Sequence[list[int]],
    results: Sequence[Result],
    *,
    limit: int,
    slack: float,
) -> OnePassParity:
    """Compare outputs with the bundle's own scores: all that differ from the oracle's, and some of
    the others.

    Args:
        oracle: whose generation settings are obeyed
        expected: the oracle's outputs
        found: the bundle's outputs, as `results` have them
        limit: the most new tokens
        slack: what rounding explains of a difference between scores, see `choices.rounding`
    """
    meter = _Meter(slack)
    chosen = _compared(expected, found)
    rules = {i: Rules.of(oracle, sources[i], limit) for i in chosen}
    outputs = {
        i: _whole(found[i], rules[i], oracle.config.end_token_id, oracle.config.target_vocab_size)
        for i in chosen
    }
    prompts = {i: rules[i].prompt for i in chosen}
    for i, logits in own_logits(model, sources, prompts, outputs):
        meter.add_choices(i, rules[i].scores(logits, outputs[i]), outputs[i])
        if outputs[i] == found[i] and 0 <= outputs[i][-1] < logits.shape[1]:
            meter.add_log_probabilities(
                _log_probabilities(logits, outputs[i], rules[i]), results[i]
            )
    return meter.result(len(chosen))


def _compared(expected: Sequence[list[int]], found: Sequence[list[int]]) -> list[int]:
    pairs = zip(expected, found, strict=True)
    same = [i for i, (tokens, other) in enumerate(pairs) if tokens == other]
    spread = np.linspace(0, len(same) - 1, min(len(same), MOST_IDENTICAL)).astype(int)
    left_out = set(same) - {same[n] for n in spread}
    return [i for i in range(len(found)) if i not in left_out]


def _whole(found: list[int], rules: Rules, end_token: int, vocabulary: int) -> list[int]:
    """An output up to a number that is no token of the vocabulary; one that ends before an end
    token or the limit, with the end token that it stands for.
    """
    for step, token in enumerate(found):
        if not 0 <= token < vocabulary:
            return found[: step + 1]
    return found if rules.has_ended(found) else [*found, end_token]


def _log_probabilities(logits: Scores, output: Sequence[int], rules: Rules) -> NDArray[np.float64]:
    """Of each token among those that are not suppressed; 0 of those that are forced."""
    among = logits.copy()
    among[:, list(rules.oracle.generation.suppressed_token_ids)] = -np.inf
    values = log_probabilities_of(among, output)
    forced = [rules.is_forced(step) for step in range(len(output))]
    return np.where(forced, 0.0, values)


class _Meter:
    """Collects tokens and log-probabilities of outputs, and those of one pass along them."""

    def __init__(self, allowed: float) -> None:
        self._allowed = allowed
        self._tokens = self._other_choices = 0
        self._worst = OtherChoice(0, 0, 0, 0, 0.0)
        self._differences: list[float] = []
        self._sum, self._scored = 0.0, 0

    def add_choices(self, index: int, scores: Scores, output: Sequence[int]) -> None:
        preferred = scores.argmax(-1)
        for step, token in enumerate(output):
            gap = NOT_FINITE
            if 0 <= token < scores.shape[1]:
                gap = float(scores[step, preferred[step]]) - float(scores[step, token])
                gap = min(gap, NOT_FINITE) if gap >= 0 else NOT_FINITE  # NaN is no number
            self._other_choices += gap > self._allowed
            if gap > self._worst.gap:
                self._worst = OtherChoice(index, step, int(preferred[step]), token, gap)
        self._tokens += len(output)

    def add_log_probabilities(self, values: NDArray[np.float64], result: Result) -> None:
        self._scored += len(values)
        if result.hypotheses:
            reported = np.array(result.hypotheses[0].token_log_probabilities)
            apart = _finite(np.abs(reported - values))
            self._differences.append(float(apart.max(initial=0.0)))
            self._sum += float(apart.sum())
        else:  # of speech
            self._sum += float(_finite(np.abs(result.log_probability - values.sum())))

    def result(self, sequences: int) -> OnePassParity:
        worst, mean = self._worst, self._sum / max(1, self._scored)
        largest = max(self._differences) if self._differences else None
        scores_agree = (largest or 0.0) <= self._allowed and mean <= MEAN_SHARE * self._allowed
        return OnePassParity(
            sequences=sequences,
            tokens=self._tokens,
            other_choices=self._other_choices,
            gap=worst.gap,
            allowed=self._allowed,
            worst=worst if self._other_choices else None,
            largest_difference=largest,
            mean_difference=mean,
            passed=not self._other_choices and scores_agree,
        )


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.nan_to_num(values, nan=NOT_FINITE, posinf=NOT_FINITE)
