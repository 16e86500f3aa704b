"""A failed check as a sentence: the first level that failed, and the tolerance that would pass."""

from __future__ import annotations

from decimal import ROUND_CEILING, Context

from dragoman.metrics import shown_figure
from dragoman.optimize.compare import NOT_FINITE
from dragoman.runtime.format.records import DistributionParity, Parity, TaskParity


def describe_failure(parity: Parity) -> str:
    """One line on what is wrong."""
    failed = [tensor for tensor in parity.tensors if not tensor.passed]
    if failed:
        first, worst = failed[0], max(tensor.difference for tensor in failed)
        if worst >= NOT_FINITE:
            return f"parity failed: {first.name} has values that are NaN or infinite"
        return (
            f"parity failed: {first.name} differs by {first.difference:.3g}, allowed "
            f"{first.tolerance:g}; a tolerance of {_rounded_up(worst)} would pass"
        )
    distributions = parity.distributions
    if distributions is not None and not distributions.passed:
        return _describe_distributions(distributions)
    vectors = parity.vectors
    if vectors is not None and not vectors.passed:
        return (
            f"parity failed: the mean cosine of vectors and the oracle's is "
            f"{vectors.bundle.mean:.6f}, allowed {vectors.allowed:.6f}"
        )
    tokens = parity.tokens
    if not tokens.passed:
        largest = max(tokens.divergences, key=lambda d: d.margin)
        return (
            f"parity failed: {tokens.sequences - tokens.identical} of {tokens.sequences} sequences "
            f"differ; the worst, {largest.named}, at step {largest.step}: expected token "
            f"{largest.expected_token}, found {largest.found_token}, margin {largest.margin:.3g}"
        )
    beams = parity.beams
    if beams is not None and not beams.passed:
        return (
            f"parity failed: with {beams.beams} beams "
            f"{beams.sequences - beams.identical - beams.ties} of {beams.sequences} sequences "
            f"differ; scores of the others by {beams.score_difference:.3g}"
        )
    failed_tasks = [task for task in parity.tasks if not task.passed]
    if failed_tasks:
        return _describe_task(failed_tasks[0])
    references = parity.references
    assert references is not None
    if references.bundle >= NOT_FINITE:
        return "parity failed: the references cannot be scored: their probabilities are not finite"
    return (
        f"parity failed: the negative log-likelihood of references is {references.bundle:.4f} nats "
        f"per token, the oracle's {references.oracle:.4f}; a tolerance of "
        f"{_rounded_up(references.bundle - references.oracle)} would pass"
    )


def _describe_distributions(found: DistributionParity) -> str:
    mean = found.bundle.mean
    if found.allowed is None and found.bundle.largest < NOT_FINITE:
        return (
            f"parity failed: {1 - found.bundle.same_choice - found.ties / found.positions:.2%} of "
            f"{found.positions} labels are not the oracle's"
        )
    if found.rounded is None or found.allowed is None or found.bundle.largest >= NOT_FINITE:
        return "parity failed: the distributions of the next token are not finite"
    return (
        f"parity failed: the distributions of the next token are {mean:.3g} nats from the oracle's "
        f"on average, allowed {found.allowed:.3g} (rounding to nearest alone: "
        f"{found.rounded.mean:.3g}); a tolerance of {_rounded_up(mean)} would pass"
    )


def _describe_task(task: TaskParity) -> str:
    figure, expected = (shown_figure(task.metric, value) for value in (task.bundle, task.oracle))
    by_chance = "" if task.chance is None else f" (by chance with p = {task.chance:.2g})"
    return (
        f"parity failed: {task.metric} is {figure}, the oracle's {expected}{by_chance}; a "
        f"tolerance of {_rounded_up(task.loss)} would pass"
    )


def _rounded_up(value: float) -> str:
    """Three digits, never less than the value."""
    return f"{float(Context(prec=3, rounding=ROUND_CEILING).create_decimal(value)):g}"
