"""Level 3: metrics of the task, on the oracle's texts and on the bundle's.

A loss fails if it is significantly more than the precision may cost, and passes if it is no more.
A figure of few texts may lose more than that without a fault: that decides nothing, and is said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context

from dragoman.metrics import Metric
from dragoman.runtime import Model
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.records import TaskParity

from ..inputs.metrics import Decode, Task
from ..tolerances import TASK_TOLERANCES

SIGNIFICANT = 0.05
"""The largest p-value at which a loss beyond the tolerance fails."""

DEVIATIONS = 1.645
"""The same in standard errors of a normal distribution."""

MOST_MORE = 10**9


@dataclass(frozen=True)
class Excess:
    """A loss beyond what is allowed.

    Attributes:
        amount: the loss less what is allowed, more than 0
        spread: the standard error of the loss
        texts: that were scored
        differing: texts of the bundle that are not the oracle's
    """

    amount: float
    spread: float
    texts: int
    differing: int

    @property
    def chance(self) -> float:
        """The p-value: the probability of such a loss if the true one were what is allowed.

        The spread is taken around what is allowed, not around the loss that was found, or a few
        texts that all happened to lose as much would seem to prove it. And half the step that one
        text makes is no evidence (Yates 1934): of 1, 2 or 4 texts that are all worse, as of coins,
        the p-values are 0.5, 0.24 and 0.07.
        """
        deviations = math.sqrt(self.texts) * self._effect - 1 / math.sqrt(max(1, self.differing))
        return math.erfc(deviations / math.sqrt(2)) / 2

    @property
    def significant(self) -> bool:
        return self.chance < SIGNIFICANT

    @property
    def more_inputs(self) -> int | None:
        """About how many more texts would make a loss of this size significant, in two digits; None
        for a single text, which has no spread.
        """
        if self.texts == 1:
            return None
        # The number at which `chance` is `SIGNIFICANT`, with the same share of differing texts.
        step = math.sqrt(self.texts / max(1, self.differing))
        root = DEVIATIONS + math.sqrt(DEVIATIONS**2 + 4 * self._effect * step)
        needed = (root / (2 * self._effect)) ** 2
        more = math.ceil(min(max(1.0, needed - self.texts), MOST_MORE))
        return int(Context(prec=2, rounding=ROUND_CEILING).create_decimal(more))

    @property
    def _effect(self) -> float:
        """The amount in standard deviations of a single text."""
        deviation = math.hypot(self.spread * math.sqrt(self.texts), self.amount)
        return self.amount / deviation


def compare_task(
    model: Model,
    task: Task,
    decode: Decode,
    expected: Sequence[Sequence[int]],
    found: Sequence[Sequence[int]],
) -> list[TaskParity]:
    """Compare the metrics of two outputs for the same sources.

    Args:
        decode: the oracle's tokenizer
        expected, found: outputs of the oracle and of the bundle, as tokens
    """
    oracle = task.texts([decode(tokens) for tokens in expected])
    bundle = task.texts([model.detokenize(tokens) or "" for tokens in found])
    return [
        judged(metric, oracle, bundle, task.references, model.manifest.precision)
        for metric in task.metrics
    ]


def judged(
    metric: Metric,
    oracle: Sequence[str],
    bundle: Sequence[str],
    references: Sequence[Sequence[str]],
    precision: Precision,
) -> TaskParity:
    """Judge one metric of two outputs for the same sources.

    At fp32, where outputs are identical, no loss is allowed and none is undecided.
    """
    figures = metric.figure(oracle, references), metric.figure(bundle, references)
    loss = figures[0] - figures[1] if metric.higher_is_better else figures[1] - figures[0]
    allowed = TASK_TOLERANCES[precision] * metric.whole
    excess = None
    if loss > allowed and precision != "fp32":
        excess = Excess(
            loss - allowed,
            metric.spread(oracle, bundle, references),
            len(oracle),
            sum(before != after for before, after in zip(oracle, bundle, strict=True)),
        )
    undecided = excess is not None and not excess.significant
    return TaskParity(
        metric.name,
        *figures,
        passed=loss <= allowed or undecided,
        higher_is_better=metric.higher_is_better,
        allowed=allowed,
        chance=metric.chance(oracle, bundle, references),
        pairs=len(oracle),
        signature=metric.signature(references),
        excess_chance=None if excess is None else excess.chance,
        undecided=undecided,
        more_inputs=excess.more_inputs if excess is not None and undecided else None,
    )
