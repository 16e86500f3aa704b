"""How probable given references are: negative log-likelihood per token, of oracle and bundle.

It is what quality is judged by where a model has no metric of its own: the difference is the
logarithm of the ratio of the perplexities.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dragoman.errors import DragomanError
from dragoman.optimize.compare import NOT_FINITE
from dragoman.reference_model import AutoregressiveModel
from dragoman.runtime import Model, ScoringOptions
from dragoman.runtime.decoding.batching import as_batch, pad
from dragoman.runtime.decoding.options import DEFAULT_BATCH_SIZE
from dragoman.runtime.format.records import ReferenceParity
from dragoman.runtime.scoring.batches import score_in_batches
from dragoman.runtime.scoring.results import ScoredPair
from dragoman.runtime.scoring.teacher_forcing import ForcedPair
from dragoman.runtime.speech.prompts import prompt_options

from ..forced import oracle_batches, oracle_pass
from ..inputs.reference_file import References
from ..tolerances import REFERENCE_TOLERANCES


def prepared(model: Model, references: References, target_language: str | None) -> list[ForcedPair]:
    """The references as the graphs take them.

    Raises:
        DragomanError: one is not a target of the model, or its source not a source; names the line.
    """
    prompt = prompt_options(model.manifest)
    options = ScoringOptions(
        source_language=references.source_language,
        target_language=target_language,
        language=prompt.language,
        task=prompt.task,
    )
    pairs = []
    for line, pair in zip(
        references.lines, model.scorer.prepare(references.pairs, options), strict=True
    ):
        if isinstance(pair, ScoredPair):
            raise DragomanError(f"{references.origin}, line {line}: {pair.error}")
        pairs.append(pair)
    return pairs


def compare_references(
    model: Model, oracle: AutoregressiveModel, pairs: Sequence[ForcedPair], origin: str
) -> ReferenceParity:
    """
    Args:
        pairs: from `prepared`
        origin: for the record
    """
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
    """The log-probability that the oracle gives to all targets together."""
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
