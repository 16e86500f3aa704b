"""Level 2: checks that a bundle generates what its own scores in one pass choose.

Every token of a free-running output must be the choice of the bundle's own scores along that
output, and its log-probability must be theirs. Along the oracle's outputs, the choices tell how
many outputs may differ. One pass and steps round almost alike, see `ROUNDING`, whatever happened to
the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.reference_model import AutoregressiveModel, LanguageModel
from dragoman.reference_model.decoding import most_new_tokens
from dragoman.runtime import Model, Result
from dragoman.runtime.decoding.request import EncoderInput, as_batch, pad
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.parity import NOT_FINITE, OnePassParity, OtherChoice
from dragoman.runtime.scoring.teacher_forcing import forcing_batches, log_probabilities_of
from dragoman.settings.generation import DEFAULT_BATCH_SIZE

from ..oracle import ForcedBatch, evenly, for_torch

Scores = NDArray[np.float32]

ROUNDING: dict[Precision, float] = {
    "fp32": 1e-4,
    "fp16": 0.01,
    "bf16": 0.03,
    "int8": 0.03,
    "int4": 0.03,
}
"""How far the scores of one pass may be from those of steps, as a share of max(1, the largest
logit): keys and values that steps read again are stored in the precision of the caches, in 8 bits
in int8 and int4 bundles for `cpu`. Right bundles (g2p-en, bible-en-es, verses-en, random T5, BART,
GPT-2) reach 3e-7 at fp32, 4e-4 in fp16, 0.003 in bf16 and int8, and 0.012 in int4."""


def rounding(precision: Precision, largest_logit: float) -> float:
    """Compute the allowed difference between scores of one pass and of steps, in logits."""
    return ROUNDING[precision] * max(1.0, largest_logit)


@dataclass(frozen=True)
class Choices:
    """How the bundle's choices along the oracle's outputs compare with the oracle's."""

    sequences: int
    changed: int
    """Outputs with at least one other choice."""
    largest_error: float
    """Of the difference between the logit of the oracle's choice and that of its runner-up or of
    the bundle's choice, at any position."""


class ChoiceMeter:
    """Measures how a bundle's choices along the oracle's outputs compare with the oracle's."""

    def __init__(self, oracle: AutoregressiveModel, limit: int) -> None:
        self._oracle, self._limit = oracle, limit
        self._sequences = self._changed = 0
        self._largest_error = 0.0

    def add(self, batch: ForcedBatch) -> None:
        """Compare the choices along a batch of the oracle's outputs."""
        for row in range(len(batch.read)):
            expected, found = self._scores(batch, row)
            self._sequences += 1
            if not len(expected):
                continue  # nothing but a forced token
            chosen, other = expected.argmax(-1), found.argmax(-1)
            self._changed += bool((chosen != other).any())
            others = expected.copy()
            others[np.arange(len(others)), chosen] = -np.inf
            self._largest_error = max(
                self._largest_error,
                _largest_error(expected, found, chosen, others.argmax(-1)),
                _largest_error(expected, found, chosen, other),
            )

    def result(self) -> Choices:
        """Summarize all batches."""
        return Choices(self._sequences, self._changed, self._largest_error)

    def _scores(self, batch: ForcedBatch, row: int) -> tuple[Scores, Scores]:
        oracle, where = self._oracle, np.flatnonzero(batch.chosen_mask[row])
        expected, found = (
            np.asarray(logits[row][where], np.float32) for logits in (batch.logits, batch.scored)
        )
        if oracle.generation.is_plain or not len(where):
            return expected, found
        forced = oracle.generation.forced_first_token_id is not None
        begin = int(where[0]) + 1 - forced
        read = batch.read[row][batch.read_mask[row]].tolist()
        without = isinstance(oracle, LanguageModel) or oracle.config.takes_audio
        source = [] if without else batch.source[row][batch.source_mask[row]].tolist()
        prompt, new = read[:begin], read[begin:]
        rules = Rules(oracle, source, prompt, most_new_tokens(oracle, prompt, self._limit))
        first = int(forced)
        return rules.scores(expected, new, first), rules.scores(found, new, first)


@dataclass(frozen=True)
class Rules:
    """The checkpoint's generation settings at the steps of one output."""

    oracle: AutoregressiveModel
    source: Sequence[int]
    """The tokens of the source; empty for audio."""
    prompt: list[int]
    limit: int

    @classmethod
    def of(cls, oracle: AutoregressiveModel, source: EncoderInput, limit: int) -> Rules:
        """Make the rules for the output of a source."""
        theirs = for_torch(source)
        prompt = oracle.prompt(theirs)
        tokens = list(map(int, oracle.source_tokens(theirs)))
        return cls(oracle, tokens, prompt, most_new_tokens(oracle, prompt, limit))

    def scores(self, logits: Scores, output: Sequence[int], first: int = 0) -> Scores:
        """Apply the rules to the scores of an output: minus infinity for forbidden tokens.

        Args:
            logits: [tokens, V], or log-probabilities
            first: the number of the output's token that the first logits are for
        """
        generation = self.oracle.generation
        if generation.is_plain:
            return logits
        ends = generation.end_tokens(self.oracle.config.end_token_id)
        ruled = [
            generation.scores(
                torch.from_numpy(row),
                self.source,
                self.prompt,
                list(output[: first + step]),
                end_tokens=ends,
                limit=self.limit,
            ).numpy()
            for step, row in enumerate(logits)
        ]
        return np.stack(ruled) if ruled else logits

    def is_forced(self, step: int) -> bool:
        """Whether the settings force the token of a step."""
        generation = self.oracle.generation
        if step == 0 and generation.forced_first_token_id is not None:
            return True
        return step + 1 == self.limit and generation.forced_last_token_id is not None

    def has_ended(self, output: Sequence[int]) -> bool:
        """Whether decoding ends with an output: with an end token, or at the limit."""
        ends = self.oracle.generation.end_tokens(self.oracle.config.end_token_id)
        return len(output) >= self.limit or bool(output and output[-1] in ends)


def own_logits(
    model: Model,
    sources: Sequence[EncoderInput],
    prompts: Mapping[int, Sequence[int]],
    outputs: Mapping[int, Sequence[int]],
) -> Iterator[tuple[int, Scores]]:
    """Compute a bundle's logits [tokens, V] along outputs, in one pass for each."""
    spec, limits = model.manifest.model, model.backend.limits
    indices = list(outputs)
    reads = {i: [*prompts[i], *outputs[i][:-1]] for i in indices}
    rows = 1 if spec.takes_audio else min(DEFAULT_BATCH_SIZE, limits.rows or DEFAULT_BATCH_SIZE)
    lengths = [(len(sources[i]), len(reads[i])) for i in indices]
    for batch in forcing_batches(spec, lengths, rows):
        members = [indices[n] for n in batch]
        encoded = [sources[i] if spec.has_encoder else [] for i in members]
        source, source_mask = as_batch(encoded, spec, limits.source_multiple)
        read, _ = pad([reads[i] for i in members], spec.pad_token_id)
        logits = model.backend.score(source, source_mask, read)
        for row, i in enumerate(members):
            first = len(prompts[i]) - 1
            yield i, np.asarray(logits[row, first : first + len(outputs[i])], np.float32)


def _largest_error(
    expected: Scores, found: Scores, one: NDArray[np.intp], other: NDArray[np.intp]
) -> float:
    rows = np.arange(len(one))
    with np.errstate(invalid="ignore"):  # of forbidden tokens
        apart = [scores[rows, one] - scores[rows, other] for scores in (expected, found)]
        errors = np.abs(apart[0] - apart[1])
    return float(errors[np.isfinite(errors)].max(initial=0.0))


MOST_IDENTICAL = 512
"""The most outputs that are compared among those that equal the oracle's."""

MEAN_SHARE = 0.1
"""How far log-probabilities may be from those of one pass on average, as a share of what a single
one may be. Right bundles reach 0.01. A fault of log-probabilities concerns all of them."""


def compare_one_pass(
    model: Model,
    oracle: AutoregressiveModel,
    sources: Sequence[EncoderInput],
    expected: Sequence[list[int]],
    found: Sequence[list[int]],
    results: Sequence[Result],
    *,
    limit: int,
    slack: float,
) -> OnePassParity:
    """Compare outputs with the bundle's own scores.

    All outputs that differ from the oracle's are compared, and some of the others.

    Args:
        slack: see `choices.rounding`
    """
    chosen = _compared(expected, found)
    rules = {i: Rules.of(oracle, sources[i], limit) for i in chosen}
    outputs = {
        i: _whole(found[i], rules[i], oracle.config.end_token_id, oracle.config.target_vocab_size)
        for i in chosen
    }
    prompts = {i: rules[i].prompt for i in chosen}
    tokens = other_choices = scored = 0
    worst = OtherChoice(0, 0, 0, 0, 0.0)
    sum_of_differences, largest = 0.0, list[float]()
    for i, logits in own_logits(model, sources, prompts, outputs):
        output, result = outputs[i], results[i]
        tokens += len(output)
        for choice in _own_choices(i, rules[i].scores(logits, output), output):
            other_choices += choice.gap > slack
            worst = max(worst, choice, key=lambda each: each.gap)
        if output != found[i] or not 0 <= output[-1] < logits.shape[1]:
            continue
        values = _log_probabilities(logits, output, rules[i])
        scored += len(values)
        if result.hypotheses:
            reported = np.array(result.hypotheses[0].token_log_probabilities)
            apart = _finite(np.abs(reported - values))
            largest.append(float(apart.max(initial=0.0)))
            sum_of_differences += float(apart.sum())
        else:  # speech reports the sum only
            difference = np.abs(result.log_probability - values.sum())
            sum_of_differences += float(_finite(difference))
    mean = sum_of_differences / max(1, scored)
    scores_agree = max(largest, default=0.0) <= slack and mean <= MEAN_SHARE * slack
    return OnePassParity(
        sequences=len(chosen),
        tokens=tokens,
        other_choices=other_choices,
        gap=worst.gap,
        allowed=slack,
        worst=worst if other_choices else None,
        largest_difference=max(largest, default=None),
        mean_difference=mean,
        passed=not other_choices and scores_agree,
    )


def _compared(expected: Sequence[list[int]], found: Sequence[list[int]]) -> list[int]:
    pairs = zip(expected, found, strict=True)
    same = [i for i, (tokens, other) in enumerate(pairs) if tokens == other]
    left_out = set(same) - {same[n] for n in evenly(len(same), MOST_IDENTICAL)}
    return [i for i in range(len(found)) if i not in left_out]


def _whole(found: list[int], rules: Rules, end_token: int, vocabulary: int) -> list[int]:
    for step, token in enumerate(found):
        if not 0 <= token < vocabulary:
            return found[: step + 1]
    return found if rules.has_ended(found) else [*found, end_token]


def _log_probabilities(logits: Scores, output: Sequence[int], rules: Rules) -> NDArray[np.float64]:
    """Compute each token's log-probability without suppressed ones; 0 for forced tokens."""
    among = logits.copy()
    among[:, list(rules.oracle.generation.suppressed_token_ids)] = -np.inf
    values = log_probabilities_of(among, output)
    forced = list(map(rules.is_forced, range(len(output))))
    return np.where(forced, 0.0, values)


def _own_choices(index: int, scores: Scores, output: Sequence[int]) -> Iterator[OtherChoice]:
    """Compare each token of an output with the best by the scores, which may be the same."""
    preferred = scores.argmax(-1)
    for step, token in enumerate(output):
        gap = NOT_FINITE
        if 0 <= token < scores.shape[1]:
            gap = float(scores[step, preferred[step]]) - float(scores[step, token])
            gap = min(gap, NOT_FINITE) if gap >= 0 else NOT_FINITE  # NaN is no number
        yield OtherChoice(index, step, int(preferred[step]), token, gap)


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.nan_to_num(values, nan=NOT_FINITE, posinf=NOT_FINITE)
