"""Level 3: metrics of the task, and the likelihood of references.

Metrics are computed on the oracle's texts and on the bundle's. A loss fails if it is significantly
more than the precision may cost; a larger loss on few texts is undecided.

References have a negative log-likelihood per token, which judges models without a metric: the
difference is the logarithm of the ratio of the perplexities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_CEILING, Context

import torch

from dragoman.errors import DragomanError
from dragoman.metrics import Metric
from dragoman.reference_model import AutoregressiveModel
from dragoman.runtime import Model, ScoringOptions
from dragoman.runtime.decoding.request import as_batch, pad
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.parity import NOT_FINITE, ReferenceParity, TaskParity
from dragoman.runtime.model import parts_of
from dragoman.runtime.scoring.interface import ScoredPair
from dragoman.runtime.scoring.teacher_forcing import ForcedPair, score_in_batches
from dragoman.runtime.speech.prompts import prompt_options
from dragoman.settings.generation import DEFAULT_BATCH_SIZE

from ..inputs.items import References
from ..inputs.parity_inputs import Decode, Task
from ..oracle import oracle_batches, oracle_pass
from ..tolerances import REFERENCE_TOLERANCES, TASK_TOLERANCES

SIGNIFICANT = 0.05
"""The largest p-value at which a loss beyond the tolerance fails."""

DEVIATIONS = 1.645
"""The same level in standard errors of a normal distribution."""

MOST_MORE = 10**9


def _chance(effect: float, texts: int, differing: int) -> float:
    """Compute the p-value: the probability of such a loss if the true one were just allowed.

    Half the step that one text makes is no evidence (Yates 1934): of 1, 2 or 4 texts that are all
    worse, the p-values are 0.5, 0.24 and 0.07.

    Args:
        effect: the loss beyond what is allowed, in standard deviations of a text
        differing: how many texts differ from the oracle's
    """
    deviations = math.sqrt(texts) * effect - 1 / math.sqrt(max(1, differing))
    return math.erfc(deviations / math.sqrt(2)) / 2


def _more_inputs(effect: float, texts: int, differing: int) -> int | None:
    """Say about how many more texts would make a loss significant; None for a single text."""
    if texts == 1:
        return None
    # The number at which `_chance` is `SIGNIFICANT`, with the same share of differing texts.
    step = math.sqrt(texts / max(1, differing))
    root = DEVIATIONS + math.sqrt(DEVIATIONS**2 + 4 * effect * step)
    needed = (root / (2 * effect)) ** 2
    more = math.ceil(min(max(1.0, needed - texts), MOST_MORE))
    return int(Context(prec=2, rounding=ROUND_CEILING).create_decimal(more))


def compare_task(
    model: Model,
    task: Task,
    decode: Decode,
    expected: Sequence[Sequence[int]],
    found: Sequence[Sequence[int]],
) -> list[TaskParity]:
    """Compare the metrics of two outputs for the same sources."""
    oracle = task.texts(list(map(decode, expected)))
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
    allowed, texts = TASK_TOLERANCES[precision] * metric.whole, len(oracle)
    chance = more = None
    undecided = False
    if loss > allowed and precision != "fp32":
        # The spread is taken around what is allowed, or a few texts that all lost as much would
        # seem to prove the loss.
        spread = metric.spread(oracle, bundle, references) * math.sqrt(texts)
        effect = (loss - allowed) / math.hypot(spread, loss - allowed)
        differing = sum(before != after for before, after in zip(oracle, bundle, strict=True))
        chance = _chance(effect, texts, differing)
        undecided = chance >= SIGNIFICANT
        more = _more_inputs(effect, texts, differing) if undecided else None
    return TaskParity(
        metric.name,
        *figures,
        passed=loss <= allowed or undecided,
        higher_is_better=metric.higher_is_better,
        allowed=allowed,
        chance=metric.chance(oracle, bundle, references),
        pairs=texts,
        signature=metric.signature(references),
        excess_chance=chance,
        undecided=undecided,
        more_inputs=more,
    )


def prepared(model: Model, references: References, target_language: str | None) -> list[ForcedPair]:
    """Prepare references as inputs of the graphs."""
    prompt = prompt_options(model.manifest)
    options = ScoringOptions(
        source_language=references.source_language,
        target_language=target_language,
        language=prompt.language,
        task=prompt.task,
    )
    pairs = []
    found = parts_of(model, "score").scorer.prepare(references.pairs, options)
    for line, pair in zip(references.lines, found, strict=True):
        if isinstance(pair, ScoredPair):
            raise DragomanError(f"{references.origin}, line {line}: {pair.error}")
        pairs.append(pair)
    return pairs


def compare_references(
    model: Model, oracle: AutoregressiveModel, pairs: Sequence[ForcedPair], origin: str
) -> ReferenceParity:
    """Compare the negative log-likelihood of references per token."""
    found = score_in_batches(model.backend, model.manifest.model, pairs, DEFAULT_BATCH_SIZE)
    tokens = sum(len(pair.target) for pair in pairs)
    expected = -oracle_log_likelihood(oracle, model, pairs) / tokens
    failed = any(pair.error is not None for pair in found)  # not finite, or no memory
    bundle = NOT_FINITE if failed else -sum(pair.log_probability for pair in found) / tokens
    tolerance = REFERENCE_TOLERANCES[model.manifest.precision]
    return ReferenceParity(
        references=origin,
        pairs=len(pairs),
        tokens=tokens,
        oracle=expected,
        bundle=bundle,
        tolerance=tolerance,
        passed=bundle - expected <= tolerance,
    )


def oracle_log_likelihood(
    oracle: AutoregressiveModel, model: Model, pairs: Sequence[ForcedPair]
) -> float:
    """Compute the oracle's log-probability of all targets together."""
    spec, total = model.manifest.model, 0.0
    lengths = [(len(pair.source), len(pair.read)) for pair in pairs]
    for batch in oracle_batches(spec, lengths):
        chosen = [pairs[i] for i in batch]
        source, source_mask = as_batch([pair.source for pair in chosen], spec)
        read, _ = pad([pair.read for pair in chosen], spec.pad_token_id)
        _, logits = oracle_pass(oracle, source, source_mask, read)
        for row, pair in zip(torch.from_numpy(logits), chosen, strict=True):
            first = len(pair.given) - 1
            at_target = row[first : first + len(pair.target)].double().log_softmax(-1)
            total += float(at_target[torch.arange(len(pair.target)), list(pair.target)].sum())
    return total
