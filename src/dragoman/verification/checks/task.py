"""Level 3: metrics of the task, on the oracle's texts and on the bundle's."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.metrics import Metric
from dragoman.runtime import Model
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.records import TaskParity

from ..inputs.metrics import Decode, Task
from ..tolerances import TASK_TOLERANCES


def compare_task(
    model: Model,
    task: Task,
    decode: Decode,
    expected: Sequence[Sequence[int]],
    found: Sequence[Sequence[int]],
) -> list[TaskParity]:
    """
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
    """One metric of two outputs for the same sources."""
    figures = metric.figure(oracle, references), metric.figure(bundle, references)
    loss = figures[0] - figures[1] if metric.higher_is_better else figures[1] - figures[0]
    allowed = TASK_TOLERANCES[precision] * metric.whole
    return TaskParity(
        metric.name,
        *figures,
        passed=loss <= allowed,
        higher_is_better=metric.higher_is_better,
        allowed=allowed,
        chance=metric.chance(oracle, bundle, references),
        pairs=len(oracle),
        signature=metric.signature(references),
    )
