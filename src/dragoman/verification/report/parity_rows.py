"""Formats parity as rows of a table, and as the sentence of a verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dragoman.metrics import describe_undecided, shown_figure
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.parity import (
    DistributionParity,
    Parity,
    TaskParity,
    TensorParity,
    are_own,
)

from ..verdict import compared_embeddings
from .contents import Check, Verdict, figure


def checks_of(parity: Parity, explained: float | None = None) -> tuple[Check, ...]:
    """Make a row for each comparison, in the order of the checks."""
    return (
        *_proof(parity),
        *_tensors(parity),
        *_distributions(parity.distributions, "a token" if parity.tokens.sequences else ""),
        *_embeddings(parity),
        *_tokens(parity, explained),
        *_task(parity),
    )


def checks_of_engines(parity: Parity) -> tuple[Check, ...]:
    """Make the rows of the engines' own outputs."""
    rows = checks_of(parity, parity.tokens.allowed_margin)
    return tuple(replace(row, what=f"engines: {row.what}") for row in rows)


def verdict_of(
    what: str,
    precision: Precision,
    parity: Parity | None,
    directory: str,
    explained: float | None,
    *,
    unrun: bool = False,
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
        failed = [check for check in checks_of(parity, explained) if not check.passed]
        text = f"{what} does not compute what the trained model computes ({compared})."
        for check in failed[:2]:
            allowed = f", allowed {check.allowed}" if check.allowed else ""
            text += f" {check.what[:1].upper()}{check.what[1:]}: found {check.found}{allowed}."
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
        ours, theirs = _shown(task)
        undecided = "; too few texts to decide" if task.undecided else ""
        yield f"{task.metric} is {ours} (the trained model's is {theirs}{undecided})"
    if parity.references is not None:
        references = parity.references
        yield (
            f"references have {references.bundle:.4f} nats a token (to the trained model "
            f"{references.oracle:.4f})"
        )


def _proof(parity: Parity) -> Iterator[Check]:
    for check in parity.checks:
        found = (
            check.problem or check.note or f"{check.compared:,} {check.unit} compared, none differs"
        )
        yield Check("proof", check.name, found, "none differs", check.passed)


def _tensors(parity: Parity) -> Iterator[Check]:
    cross = [tensor for tensor in parity.tensors if tensor.name.startswith("cross_")]
    if cross:
        worst = max(cross, key=lambda tensor: tensor.difference)
        yield _tensor(worst, f"cross keys and values, the worst: {worst.name}", cross)
    for tensor in parity.tensors:
        if tensor not in cross:
            yield _tensor(tensor, tensor.name, [tensor])


def _tensor(tensor: TensorParity, what: str, judged: list[TensorParity]) -> Check:
    found = f"{figure(tensor.difference)} (absolute {figure(tensor.largest_absolute)})"
    beyond = max(t.positions_beyond for t in judged)
    if beyond:
        found += f"; more than allowed at {beyond} of {tensor.positions} positions"
    allowed = "finite" if tensor.tolerance is None else f"{figure(tensor.tolerance, 3)}"
    passed = all(t.passed for t in judged)
    return Check("numbers", f"{what}, largest difference", found, allowed, passed)


def _distributions(found: DistributionParity | None, each: str) -> Iterator[Check]:
    if found is None:
        return
    distance = found.bundle
    text = (
        f"mean {figure(distance.mean)} (median {figure(distance.median)}, 99 % below "
        f"{figure(distance.percentile_99)}, largest {figure(distance.largest)})"
    )
    allowed = ""
    if found.allowed is not None:
        alone = "" if found.rounded is None else f" (rounding alone {figure(found.rounded.mean)})"
        allowed = f"{figure(found.allowed)}{alone}"
    what = f"distributions, nats {each}".rstrip()
    yield Check("numbers", what, text, allowed, found.passed)
    same = f"{distance.same_choice:.2%} of {found.positions:,}"
    if found.ties:
        same += f", {found.ties} as good"
    yield Check("numbers", "the same most probable choice", same, "", found.passed)


def _embeddings(parity: Parity) -> Iterator[Check]:
    for what, found, allowed, passed in compared_embeddings(parity):
        yield Check("numbers", what, found, allowed, passed is not False)


def _tokens(parity: Parity, explained: float | None) -> Iterator[Check]:
    tokens, beams = parity.tokens, parity.beams
    if tokens.sequences:
        found = f"{tokens.identical:,} of {tokens.sequences:,} identical"
        if tokens.divergences:
            found += f", largest margin {figure(max(d.margin for d in tokens.divergences), 3)}"
        limits = [] if explained is None else [f"margins up to {figure(explained, 3)}"]
        if tokens.least_identical is not None:
            limits.insert(0, f"at least {tokens.least_identical:,} identical")
        judged = tokens.passed, tokens.undecided
        yield Check("tokens", "greedy outputs", found, ", ".join(limits), *judged)
    if tokens.one_pass is not None:
        one_pass = tokens.one_pass
        yield Check(
            "tokens",
            f"tokens of {one_pass.sequences:,} outputs that the bundle's own scores choose",
            f"{one_pass.tokens - one_pass.other_choices:,} of {one_pass.tokens:,}",
            f"scores {figure(one_pass.allowed, 3)} apart",
            one_pass.passed,
        )
    if beams is not None:
        found = f"{beams.identical} of {beams.sequences} identical, {beams.ties} as good"
        judged = beams.passed, beams.undecided
        yield Check("tokens", f"best of {beams.beams} beams", found, "", *judged)


def _shown(task: TaskParity) -> tuple[str, str]:
    return shown_figure(task.metric, task.bundle), shown_figure(task.metric, task.oracle)


def _task(parity: Parity) -> Iterator[Check]:
    for task in parity.tasks:
        ours, theirs = _shown(task)
        found = f"{ours}, trained model {theirs}"
        if task.chance is not None and task.oracle != task.bundle:
            found += f", by chance with p = {figure(task.chance, 1)}"
        allowed = "" if task.allowed is None else f"{shown_figure(task.metric, task.allowed)} worse"
        if task.undecided:
            limit, more = task.allowed or 0.0, task.more_inputs
            found += f"; {describe_undecided(task.metric, task.loss, limit, task.pairs, more)}"
        yield Check("task", task.metric, found, allowed, task.passed, task.undecided)
    if parity.references is not None:
        references = parity.references
        found = f"{references.bundle:.4f}, trained model {references.oracle:.4f}"
        what = f"nats a token of {references.pairs:,} references"
        allowed = f"{figure(references.tolerance, 3)} more"
        yield Check("task", what, found, allowed, references.passed)
