"""Describes the outcome of parity: for whoever signs, the first failure, and what was proved."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from typing import Literal

from dragoman.metrics import shown_figure
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.parity import (
    NOT_FINITE,
    BeamParity,
    DistributionParity,
    OnePassParity,
    Parity,
    TaskParity,
    TokenParity,
    are_own,
)

from .parity_rows import figure, parity_rows, shown_task


@dataclass(frozen=True)
class Verdict:
    """The outcome of parity, in a word and as a sentence for whoever signs."""

    state: Literal["passed", "failed", "not verified"]
    sentence: str


def verdict_of(
    what: str, precision: Precision, parity: Parity | None, directory: str, *, unrun: bool = False
) -> Verdict:
    """Describe the outcome in a sentence for whoever signs.

    Args:
        unrun: whether the bundle has engines, and only their graphs were run
    """
    if parity is None:
        return Verdict(
            "not verified",
            f"{what} was never compared with the trained model: run dragoman verify {directory} "
            "CHECKPOINT.",
        )
    compared = f"compared on {parity.inputs}"
    if are_own(parity.inputs):
        compared += ", which say nothing about quality"
    if not parity.passed:
        failed = [row for row in parity_rows(parity) if row.state == "failed"]
        text = f"{what} does not compute what the trained model computes ({compared})."
        for row in failed[:2]:
            allowed = f", allowed {row.allowed}" if row.allowed else ""
            text += f" {row.what[:1].upper()}{row.what[1:]}: found {row.found}{allowed}."
        return Verdict("failed", text)
    exactly = "" if precision == "fp32" else f", as far as {precision} allows"
    return Verdict(
        "passed",
        f"{what} computes what the trained model computes{exactly}: "
        f"{', '.join(_highlights(parity))} ({compared})."
        + " This holds for the graphs of its engines; the engines were not run."
        * unrun,
    )


def _highlights(parity: Parity) -> Iterator[str]:
    tokens, distributions = parity.tokens, parity.distributions
    if tokens.undecided:
        yield f"none of {tokens.sequences:,} greedy outputs is identical, which rounding explains"
    elif tokens.sequences:
        yield f"{tokens.identical:,} of {tokens.sequences:,} greedy outputs are identical"
    if distributions is not None and distributions.allowed is not None:
        yield (
            "distributions of the next token are "
            f"{figure(distributions.bundle.mean)} nats apart on average "
            f"({figure(distributions.allowed)} are allowed)"
        )
    if parity.vectors is not None:
        yield f"the mean cosine of embeddings is {parity.vectors.bundle.mean:.6f}"
    for task in parity.tasks:
        ours, theirs = shown_task(task)
        undecided = "; too few texts to decide" if task.undecided else ""
        yield f"{task.metric} is {ours} (the trained model's is {theirs}{undecided})"
    if (references := parity.references) is not None:
        yield (
            f"references have {references.bundle:.4f} nats a token (to the trained model "
            f"{references.oracle:.4f})"
        )


def describe_failure(parity: Parity) -> str:
    """Describe the first failure in one line."""
    return f"parity failed: {_failure(parity)}"


def _failure(parity: Parity) -> str:
    for check in parity.checks:
        if not check.passed:
            return f"{check.name}: {check.problem}"
    failed = [tensor for tensor in parity.tensors if not tensor.passed]
    if failed:
        first, worst = failed[0], max(tensor.difference for tensor in failed)
        if worst >= NOT_FINITE:
            return f"{first.name} has values that are NaN or infinite"
        return (
            f"{first.name} differs by {first.difference:.3g}, allowed "
            f"{first.tolerance:g}; a tolerance of {_rounded_up(worst)} would pass"
        )
    distributions = parity.distributions
    if distributions is not None and not distributions.passed:
        found = _describe_distributions(distributions)
        is_rounding = distributions.rounded and distributions.bundle.largest < NOT_FINITE
        return f"{found}{_hint(parity) if is_rounding else ''}"
    vectors = parity.vectors
    if vectors is not None and not vectors.passed:
        return (
            f"the mean cosine between embeddings and the oracle's is "
            f"{vectors.bundle.mean:.6f}, allowed {vectors.allowed:.6f}"
            f"{_hint(parity) if vectors.rounded else ''}"
        )
    tokens = parity.tokens
    if not tokens.passed:
        return _describe_tokens(tokens)
    beams = parity.beams
    if beams is not None and not beams.passed:
        return _describe_beams(beams)
    failed_tasks = [task for task in parity.tasks if not task.passed]
    if failed_tasks:
        return _describe_task(failed_tasks[0])
    references = parity.references
    assert references is not None
    if references.bundle >= NOT_FINITE:
        return "the references cannot be scored: their probabilities are not finite"
    return (
        f"the negative log-likelihood of references is {references.bundle:.4f} nats "
        f"per token, the oracle's {references.oracle:.4f}; a tolerance of "
        f"{_rounded_up(references.bundle - references.oracle)} would pass"
    )


def _hint(parity: Parity) -> str:
    """Say that inputs were not chosen for this model, on which rounding may cost more."""
    if not are_own(parity.inputs):
        return ""
    return "; these are default inputs: compare on texts or clips of your own, too (--inputs)"


def describe_proof(parity: Parity) -> str:
    """Describe what a passed proof covers, and what it does not; "" without coverage."""
    covered = parity.coverage
    if covered is None or not parity.passed:
        return ""
    parts, left = [], []
    if covered.weights:
        parts.append(f"all weights ({covered.weights:,} compared with the checkpoint's)")
    if covered.graphs:
        parts.append("everything that the graphs compute")
    else:
        left.append("what an engine computes on other inputs")
    for side, lengths in (("sources", covered.source_lengths), ("targets", covered.target_lengths)):
        if lengths:
            parts.append(f"{side} of {lengths[0]} to {lengths[1]} tokens")
    if covered.target_lengths:
        parts.append(f"{covered.cached_positions} of {covered.positions} cached positions")
    parts.append(f"batches of {', '.join(map(str, covered.batch_sizes))}")
    for side, share in (
        ("source", covered.source_vocabulary),
        ("target", covered.target_vocabulary),
    ):
        if share < 1:
            left.append(f"faults at single {side} tokens ({share:.0%} of them were read)")
    if covered.cached_positions < covered.positions:
        left.append("faults at single cached positions between")
    left.append("batches of other sizes")
    judged = (parity.distributions, parity.vectors)
    if any(level is not None and level.rounded is not None for level in judged):
        left.append("what rounding costs on inputs of another kind")
    return f"This proof covers {', '.join(parts)}. It does not cover {'; '.join(left)}."


def _describe_distributions(found: DistributionParity) -> str:
    mean = found.bundle.mean
    if found.allowed is None and found.bundle.largest < NOT_FINITE:
        return (
            f"{1 - found.bundle.same_choice - found.ties / found.positions:.2%} of "
            f"{found.positions} labels are not the oracle's"
        )
    if found.allowed is None or found.bundle.largest >= NOT_FINITE:
        return "the distributions of the next token are not finite"
    rounded = found.rounded
    alone = "" if rounded is None else f" (rounding to nearest alone: {rounded.mean:.3g})"
    return (
        f"the distributions of the next token are {mean:.3g} nats from the oracle's "
        f"on average, allowed {found.allowed:.3g}{alone}; a tolerance of {_rounded_up(mean)} would "
        "pass"
    )


def _describe_tokens(tokens: TokenParity) -> str:
    one_pass, judged = tokens.one_pass, tokens.least_identical is not None
    if one_pass is not None and not one_pass.passed and (judged or not tokens.divergences):
        return _describe_one_pass(one_pass)
    text = f"{tokens.sequences - tokens.identical} of {tokens.sequences} sequences differ"
    if tokens.least_identical is not None and tokens.identical < tokens.least_identical:
        return (
            f"{text}: by the distributions of the next token {tokens.expected_identical:.0f} are "
            f"expected to be identical, at least {tokens.least_identical}, found {tokens.identical}"
        )
    largest = max(tokens.divergences, key=lambda d: d.margin)
    text += (
        f"; the worst, {largest.named}, at step {largest.step}: expected token "
        f"{largest.expected_token}, found {largest.found_token}, margin {largest.margin:.3g}"
    )
    return text if tokens.allowed_margin is None else f"{text}, allowed {tokens.allowed_margin:.3g}"


def _describe_one_pass(found: OnePassParity) -> str:
    worst = found.worst
    if worst is not None:
        gap = "" if worst.gap >= NOT_FINITE else f", whose score is {worst.gap:.3g} higher"
        return (
            f"{found.other_choices} of {found.tokens} generated tokens are not what "
            f"the bundle's own scores choose; the worst, {worst.named}, at step {worst.step}: "
            f"token {worst.found_token} in place of {worst.preferred_token}{gap}, allowed "
            f"{found.allowed:.2g}"
        )
    largest = found.largest_difference
    single = "" if largest is None else f"; a single one by up to {largest:.3g}"
    return (
        "log-probabilities of generated tokens differ from the bundle's own in one "
        f"pass by {found.mean_difference:.3g} nats on average{single}; allowed "
        f"{found.allowed / 10:.2g} and {found.allowed:.2g}"
    )


def _describe_beams(beams: BeamParity) -> str:
    if beams.own_difference > beams.own_allowed:
        return (
            f"with {beams.beams} beams the score of a hypothesis differs by "
            f"{beams.own_difference:.3g} from the one that the bundle's own log-probabilities give "
            f"under the checkpoint's length penalty, allowed {beams.own_allowed:.2g}"
        )
    return (
        f"with {beams.beams} beams "
        f"{beams.sequences - beams.identical - beams.ties} of {beams.sequences} sequences "
        f"differ; scores of the others by {beams.score_difference:.3g}"
    )


def _describe_task(task: TaskParity) -> str:
    figure, expected = (shown_figure(task.metric, value) for value in (task.bundle, task.oracle))
    by_chance = "" if task.chance is None else f" (by chance with p = {task.chance:.2g})"
    return (
        f"{task.metric} is {figure}, the oracle's {expected}{by_chance}; a "
        f"tolerance of {_rounded_up(task.loss)} would pass"
    )


def _rounded_up(value: float) -> str:
    return f"{float(Context(prec=3, rounding=ROUND_CEILING).create_decimal(value)):g}"
