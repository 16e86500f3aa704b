"""Compares a bundle's outputs with those of the trained model, the oracle, that it stores.

The known answers hold the oracle's outputs, and the log-probabilities of its most probable tokens
along them, so that neither the checkpoint nor PyTorch is needed. The log-probability of all other
tokens together follows from those that are stored. The divergence between two such summaries is at
most that between the whole distributions, and close to it where the others are improbable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError

from .answer_comparison import Outcome, encode, generate, options_of_answer
from .audio.log_mel import sound
from .decoding.request import as_batch, pad
from .format.known_answers import EncodedAnswer, GeneratedAnswer, KnownAnswers
from .format.parity import (
    NOT_FINITE,
    Check,
    Distance,
    DistributionParity,
    Divergence,
    Parity,
    TensorParity,
    TokenParity,
)
from .model import Model, parts_of
from .scoring.interface import ScoredPair, ScoringOptions

ORACLE = "the trained model's outputs, stored at build"

TOLERANCE = 1e-4
"""At fp32, the largest difference of a tensor, divided by max(1, the oracle's largest value)."""
MARGIN_FACTOR = 4
"""The largest margin that may be lost, as a multiple of the largest error of a difference between
log-probabilities along the oracle's outputs."""
NEAR_TIE = 0.002
"""The margin in nats that may be lost in any case."""
LEAST_REST = 1e-9
"""The smallest probability of all tokens that are not stored: below, their sum is rounding."""


def compare_with_oracle(
    model: Model, known: KnownAnswers, outcomes: Sequence[Outcome], *, backend: str
) -> Parity | None:
    """Compare tensors, tokens and distributions with the oracle's; None if none are stored.

    Args:
        outcomes: the comparison of the known answers with the bundle's own outputs, for the record
        backend: the backend and the device that run the bundle, for the record
    """
    generated = [
        answer for answer in known.answers if isinstance(answer, GeneratedAnswer) and answer.likely
    ]
    encoded = [
        answer
        for answer in known.answers
        if isinstance(answer, EncodedAnswer) and answer.oracle_values
    ]
    if not generated and not encoded:
        return None
    checks = [_check(outcomes)] if outcomes else []
    tensors: list[TensorParity] = []
    distributions, tokens = None, TokenParity(0, 0, (), True)
    fp32 = model.manifest.precision == "fp32"
    try:
        if encoded:
            tensors.append(_outputs(model, encoded, TOLERANCE if fp32 else known.allowed))
        if generated:
            along = [_along(model, known, answer) for answer in generated]
            tensors.append(_log_probabilities(along, TOLERANCE if fp32 else None))
            distributions = _distributions(along, None if fp32 else known.allowed)
            tokens = _tokens(model, known, generated, along)
    except DragomanError as error:  # a graph or an engine that fails
        checks.append(_failed(str(error)))
    judged = [*checks, *tensors, distributions, tokens]
    return Parity(
        passed=all(level.passed for level in judged if level is not None),
        oracle=ORACLE,
        inputs=f"{len(generated) + len(encoded)} known answers",
        backend=backend,
        tensors=tuple(tensors),
        tokens=tokens,
        distributions=distributions,
        checks=tuple(checks),
    )


def unloaded(problem: str, backend: str) -> Parity:
    """Make the record of a bundle that cannot be loaded where it should run."""
    nothing = TokenParity(0, 0, (), True)
    return Parity(False, ORACLE, "no inputs", backend, (), nothing, checks=(_failed(problem),))


def _failed(problem: str) -> Check:
    return Check("outputs", 1, "runs", 1, False, problem=problem)


def _check(outcomes: Sequence[Outcome]) -> Check:
    failed = [outcome for outcome in outcomes if outcome.problem is not None]
    problem = f"{failed[0].answer.name}: {failed[0].problem}" if failed else ""
    return Check(
        "known answers", len(outcomes), "outputs", len(failed), not failed, problem=problem
    )


@dataclass(frozen=True)
class _Along:
    """Log-probabilities along an output of the oracle, at the steps whose tokens are not forced."""

    first: int
    """Number of the first step."""
    expected: list[NDArray[np.float64]]
    """Those of the oracle, of the tokens that the answer stores for each step."""
    found: list[NDArray[np.float64]]
    """Those of the bundle."""
    same: list[bool]
    """Whether the bundle's most probable token is the oracle's, of each step."""

    @property
    def largest_error(self) -> float:
        """The largest error of a difference between the output's token and another one."""
        errors = [
            np.abs((found - found[0]) - (expected - expected[0])).max()
            for expected, found in zip(self.expected, self.found, strict=True)
        ]
        return _finite(max(errors, default=0.0))


def _along(model: Model, known: KnownAnswers, answer: GeneratedAnswer) -> _Along:
    manifest = model.manifest
    spec, backend, generation = manifest.model, parts_of(model).backend, manifest.generation
    first = sum(not tokens for tokens in answer.likely)
    output = answer.tokens if answer.oracle is None else answer.oracle
    steps = [np.array(tokens) for tokens in answer.likely[first:]]
    if not steps:
        return _Along(first, [], [], [])
    audio, prompt = manifest.audio, options_of_answer(manifest, known, answer)
    source = answer.source if audio is None else sound(audio.sampling_rate, answer.seconds or 0)
    options = ScoringOptions(
        end_token=False,
        target_language=prompt.target_language,
        language=prompt.language,
        task=prompt.task,
    )
    (pair,) = parts_of(model).scorer.prepare([(source, (*answer.prefix, *output))], options)
    if isinstance(pair, ScoredPair):
        raise DragomanError(f"{answer.name}: {pair.error}")
    encoded, mask = as_batch([pair.source], spec, backend.limits.source_multiple)
    read, _ = pad([pair.read], spec.pad_token_id)
    logits = backend.score(encoded, mask, read)[0, -len(steps) :].astype(np.float64)
    logits[:, list(generation.suppressed_token_ids)] = -np.inf
    with np.errstate(invalid="ignore"):  # logits that are not finite are reported as differences
        logits -= logits.max(axis=1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    expected = [np.array(values) for values in answer.oracle_log_probabilities[first:]]
    return _Along(
        first,
        expected,
        [row[tokens] for row, tokens in zip(logits, steps, strict=True)],
        [
            bool(tokens[values.argmax()] == row.argmax())
            for row, tokens, values in zip(logits, steps, expected, strict=True)
        ],
    )


def _log_probabilities(along: Sequence[_Along], tolerance: float | None) -> TensorParity:
    pairs = [pair for each in along for pair in zip(each.expected, each.found, strict=True)]
    absolute = [_finite(np.abs(found - expected).max()) for expected, found in pairs]
    relative = [
        _finite((np.abs(found - expected) / np.maximum(np.abs(expected), 1e-3)).max())
        for expected, found in pairs
    ]
    scale = max((float(np.abs(expected).max()) for expected, _ in pairs), default=1.0)
    return _tensor("log_probabilities", absolute, relative, max(1.0, scale), tolerance)


def _outputs(
    model: Model, answers: Sequence[EncodedAnswer], tolerance: float | None
) -> TensorParity:
    gaps = []
    for answer, found in zip(answers, encode(model, answers), strict=True):
        if isinstance(found, DragomanError):
            raise found
        values, size = found
        gap = np.abs(values - np.array(answer.oracle_values)).max()
        apart = abs(size - answer.oracle_size) / max(answer.oracle_size, 1e-30)
        gaps.append(_finite(max(gap, apart)))
    return _tensor("output", gaps, gaps, 1.0, tolerance)


def _tensor(
    name: str,
    absolute: Sequence[float],
    relative: Sequence[float],
    scale: float,
    tolerance: float | None,
) -> TensorParity:
    """Judge a tensor by its differences at each position; None: they need only be finite."""
    largest = max(absolute, default=0.0)
    beyond = 0 if tolerance is None else sum(value / scale > tolerance for value in absolute)
    return TensorParity(
        name=name,
        largest_absolute=largest,
        largest_relative=max(relative, default=0.0),
        difference=largest / scale,
        tolerance=tolerance,
        passed=largest < NOT_FINITE and not beyond,
        positions=len(absolute),
        positions_beyond=beyond,
    )


def _distributions(along: Sequence[_Along], allowed: float | None) -> DistributionParity | None:
    """Judge the mean divergence; at fp32, divergences need only be finite."""
    divergences = np.array(
        [
            divergence(expected, found)
            for each in along
            for expected, found in zip(each.expected, each.found, strict=True)
        ]
    )
    if not len(divergences):
        return None
    distance = Distance(
        mean=float(divergences.mean()),
        median=float(np.median(divergences)),
        percentile_99=float(np.quantile(divergences, 0.99)),
        largest=float(divergences.max()),
        same_choice=float(np.mean([same for each in along for same in each.same])),
    )
    passed = distance.largest < NOT_FINITE and (allowed is None or distance.mean <= allowed)
    return DistributionParity(len(divergences), distance, None, allowed, passed)


def divergence(expected: NDArray[np.float64], found: NDArray[np.float64]) -> float:
    """Return the Kullback-Leibler divergence of two summaries of distributions, in nats.

    Args:
        expected, found: log-probabilities of the same tokens; what is left to 1 is that of all
            other tokens together
    """
    p, q = np.exp(expected), np.exp(found)
    rest, other = (max(LEAST_REST, 1 - float(each.sum())) for each in (p, q))
    with np.errstate(invalid="ignore"):
        total = float((p * (expected - found)).sum() + rest * np.log(rest / other))
    return max(0.0, _finite(total))


def _tokens(
    model: Model,
    known: KnownAnswers,
    answers: Sequence[GeneratedAnswer],
    along: Sequence[_Along],
) -> TokenParity:
    """Compare free-running greedy outputs; a forced beginning has no output of the oracle."""
    free = [
        (answer, each) for answer, each in zip(answers, along, strict=True) if not answer.prefix
    ]
    found = generate(model, known, [answer for answer, _ in free])
    allowed = NEAR_TIE + MARGIN_FACTOR * max((each.largest_error for each in along), default=0.0)
    allowed = min(allowed, NOT_FINITE)
    divergences = []
    for index, ((answer, each), output) in enumerate(zip(free, found, strict=True)):
        if output.error is not None:
            raise DragomanError(f"{answer.name}: {output.error}")
        expected = answer.tokens if answer.oracle is None else answer.oracle
        end = model.manifest.model.end_token_id
        pairs = zip_longest(expected, output.tokens, fillvalue=end)
        for step, (token, other) in enumerate(pairs):
            if token != other:
                margin = _margin(answer, each, step, other)
                divergences.append(
                    Divergence(index, step, token, other, margin, answer.name, answer.text)
                )
                break
    return TokenParity(
        sequences=len(free),
        identical=len(free) - len(divergences),
        divergences=tuple(divergences),
        passed=all(divergence.margin <= allowed for divergence in divergences),
        allowed_margin=allowed,
    )


def _margin(answer: GeneratedAnswer, along: _Along, step: int, found: int) -> float:
    """Return the oracle's log-probability of its own token minus that of the one found, at least.

    A token that is not stored is less probable than those that are.
    """
    index = step - along.first
    if not 0 <= index < len(along.expected):
        return NOT_FINITE  # another token than a forced one, or beyond the end
    tokens, values = answer.likely[step], along.expected[index]
    other = values[tokens.index(found)] if found in tokens else values.min()
    return float(values[0] - other)


def _finite(value: float) -> float:
    return min(float(value), NOT_FINITE) if np.isfinite(value) else NOT_FINITE
