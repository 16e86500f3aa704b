"""Formats parity as rows of a table."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dragoman.metrics import describe_undecided, shown_figure
from dragoman.runtime.format.parity import Parity, TaskParity, TensorParity

MOST_SHOWN = 100
"""Nats: a perplexity beyond its exponential says nothing."""
EXPONENT = re.compile(r"e([+-])0*(\d)")


def figure(value: float, digits: int = 2) -> str:
    """Format a number with some significant digits, as in 0.031 and 5.9e-5."""
    return EXPONENT.sub(r"e\1\2", f"{value:.{digits}g}").replace("e+", "e")


@dataclass(frozen=True)
class ParityRow:
    """A comparison of parity: what was compared, what was found and allowed, and the outcome."""

    level: str
    """Proof, numbers, tokens or task."""
    what: str
    found: str
    allowed: str
    """The limit; empty if there is none."""
    passed: bool | None
    """None: what was found is stated, and not judged."""
    undecided: bool = False
    """Whether it passed because there was too little to compare."""

    @property
    def state(self) -> str:
        """The outcome in a word."""
        if self.passed is None:
            return "stated"
        return "undecided" if self.undecided else "passed" if self.passed else "failed"


def parity_rows(parity: Parity) -> tuple[ParityRow, ...]:
    """Make a row for each comparison, in the order of the checks."""
    return (
        *_proof(parity),
        *_tensors(parity),
        *_distributions(parity),
        *_embeddings(parity),
        *_tokens(parity),
        *_task(parity),
    )


def rows_of_engines(parity: Parity) -> tuple[ParityRow, ...]:
    """Make the rows of the engines' own outputs."""
    return tuple(replace(row, what=f"engines: {row.what}") for row in parity_rows(parity))


def _proof(parity: Parity) -> Iterator[ParityRow]:
    for check in parity.checks:
        found = check.note or f"{check.compared:,} {check.unit} compared, none differs"
        if not check.compared and check.problem:
            found = check.problem
        elif check.differing or check.problem:
            found = f"{check.differing:,} of {check.compared:,} {check.unit} differ"
            found += f": {check.problem}" * bool(check.problem)
        if check.worst is not None:
            found += f"; at most {check.worst:.2g} of what is allowed"
        yield ParityRow("proof", check.name, found, "none differs", check.passed)


def _tensors(parity: Parity) -> Iterator[ParityRow]:
    cross = [tensor for tensor in parity.tensors if tensor.name.startswith("cross_")]
    if cross:
        worst = max(cross, key=lambda tensor: tensor.difference)
        yield _tensor(worst, f"cross keys and values, the worst: {worst.name}", cross)
    for tensor in parity.tensors:
        if tensor not in cross:
            yield _tensor(tensor, tensor.name, [tensor])


def _tensor(tensor: TensorParity, what: str, judged: list[TensorParity]) -> ParityRow:
    found = (
        f"{figure(tensor.difference)} (absolute {figure(tensor.largest_absolute)}, relative "
        f"{figure(tensor.largest_relative)})"
    )
    if beyond := max(t.positions_beyond for t in judged):
        found += f"; more than allowed at {beyond} of {tensor.positions} positions"
    allowed = "finite" if tensor.tolerance is None else figure(tensor.tolerance, 3)
    passed = all(t.passed for t in judged)
    return ParityRow("numbers", what, found, allowed, passed)


def _distributions(parity: Parity) -> Iterator[ParityRow]:
    if (found := parity.distributions) is None:
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
    what = "distributions, nats" + " a token" * bool(parity.tokens.sequences)
    yield ParityRow("numbers", what, text, allowed, found.passed)
    same = f"{distance.same_choice:.2%} of {found.positions:,}"
    if found.ties:
        same += f", {found.ties} as good"
    yield ParityRow("numbers", "the same most probable choice", same, "", found.passed)


def _embeddings(parity: Parity) -> Iterator[ParityRow]:
    if (vectors := parity.vectors) is not None:
        found = f"mean {vectors.bundle.mean:.6f}, smallest {vectors.bundle.smallest:.6f}"
        allowed = f"{vectors.allowed:.6f}"
        if vectors.rounded is not None:
            allowed += f" (rounding alone {vectors.rounded.mean:.6f})"
        what = f"cosines of {vectors.vectors:,} embeddings"
        yield ParityRow("numbers", what, found, allowed, vectors.passed)
    if (ranks := parity.ranks) is not None:
        found = f"Kendall's tau {ranks.bundle.tau:.4f}, NDCG@10 {ranks.bundle.ndcg:.4f}"
        alone = ""
        if ranks.rounded is not None:
            alone = f"rounding alone {ranks.rounded.tau:.4f}, {ranks.rounded.ndcg:.4f}"
        what = f"order of {ranks.documents:,} documents in {ranks.lists:,} lists"
        yield ParityRow("numbers", what, found, alone, None)


def _tokens(parity: Parity) -> Iterator[ParityRow]:
    tokens, beams = parity.tokens, parity.beams
    if tokens.sequences:
        found, limits = f"{tokens.identical:,} of {tokens.sequences:,} identical", []
        if tokens.expected_identical is not None and tokens.least_identical is not None:
            found += f", {tokens.expected_identical:,.0f} expected"
            limits.append(f"at least {tokens.least_identical:,} identical")
        if tokens.divergences:
            lost = max(tokens.divergences, key=lambda d: d.margin)
            found += (
                f"; largest margin lost {figure(lost.margin, 3)} ({lost.named}, step {lost.step}: "
                f"token {lost.found_token} for {lost.expected_token})"
            )
        if tokens.allowed_margin is not None:
            limits.append(f"margins up to {figure(tokens.allowed_margin, 3)}")
        allowed = ", ".join(limits) or "all identical"
        judged = tokens.passed, tokens.undecided
        yield ParityRow("tokens", "greedy outputs", found, allowed, *judged)
    if (one_pass := tokens.one_pass) is not None:
        found = f"{one_pass.tokens - one_pass.other_choices:,} of {one_pass.tokens:,}"
        if one_pass.worst is not None:
            found += f" (the worst: {one_pass.worst.named}, step {one_pass.worst.step})"
        apart = one_pass.largest_difference
        if apart is None:
            apart = one_pass.mean_difference
        found += f"; log-probabilities {figure(apart)} apart"
        what = f"tokens of {one_pass.sequences:,} outputs that the bundle's own scores choose"
        allowed = f"scores {figure(one_pass.allowed, 3)} apart"
        yield ParityRow("tokens", what, found, allowed, one_pass.passed)
    if beams is not None:
        found = f"{beams.identical} of {beams.sequences} identical"
        if beams.ties:
            found += f", {beams.ties} as good"
        found += (
            f"; scores differ by {figure(beams.score_difference)}, from own scores by "
            f"{figure(beams.own_difference)}"
        )
        what, allowed = f"best of {beams.beams} beams", f"own scores {figure(beams.own_allowed)}"
        yield ParityRow("tokens", what, found, allowed, beams.passed, beams.undecided)
    if (cost := parity.shortlist) is not None:
        found = f"{cost.identical} of {cost.sequences} identical"
        for task in cost.tasks:
            bundle, oracle = shown_task(task)
            found += f"; {task.metric} {bundle}, of the whole vocabulary {oracle}"
        what = f"the shortlist's cost, with {cost.allowed:,.0f} tokens a source"
        yield ParityRow("tokens", what, found, "", None)


def shown_task(task: TaskParity) -> tuple[str, str]:
    """Format the metric of the bundle and of the oracle."""
    return shown_figure(task.metric, task.bundle), shown_figure(task.metric, task.oracle)


def _task(parity: Parity) -> Iterator[ParityRow]:
    for task in parity.tasks:
        ours, theirs = shown_task(task)
        found = f"{ours}, trained model {theirs}"
        if task.chance is not None and task.oracle != task.bundle:
            found += f", by chance with p = {figure(task.chance)}"
        allowed = "" if task.allowed is None else f"{shown_figure(task.metric, task.allowed)} worse"
        if task.undecided:
            limit, more = task.allowed or 0.0, task.more_inputs
            found += f"; {describe_undecided(task.metric, task.loss, limit, task.pairs, more)}"
        what = f"{task.metric} of {task.pairs:,} texts" if task.pairs else task.metric
        yield ParityRow("task", what, found, allowed, task.passed, task.undecided)
    if (references := parity.references) is not None:
        difference = references.bundle - references.oracle
        found = (
            f"{references.bundle:.4f}, trained model {references.oracle:.4f} ({difference:+.2g})"
        )
        if max(references.bundle, references.oracle) < MOST_SHOWN:
            perplexities = (math.exp(nats) for nats in (references.bundle, references.oracle))
            found += "; perplexity {:.4g}, trained model {:.4g}".format(*perplexities)
        what = f"nats a token of {references.pairs:,} references ({references.references})"
        allowed = f"{figure(references.tolerance, 3)} more"
        yield ParityRow("task", what, found, allowed, references.passed)
