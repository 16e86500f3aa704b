"""All three levels of parity, in order."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dragoman.errors import DragomanError
from dragoman.reference_model import Transformer
from dragoman.runtime import Model
from dragoman.runtime.format.records import Parity

from .distributions import DistributionMeter
from .forced import forced_batches
from .inputs import ParityInputs
from .oracle import oracle_for, oracle_outputs
from .references import compare_references, prepared
from .rounded_oracle import rounded_oracle
from .strategy import compare_beams
from .task import compare_task
from .tensors import TensorMeters
from .tokens import bundle_outputs, compare_tokens


def check_parity(
    model: Model,
    reference: Transformer,
    inputs: ParityInputs,
    *,
    backend: str,
    advance: Callable[[int], None] = lambda count: None,
) -> Parity:
    """Compare a bundle with the trained model on all three levels.

    Args:
        backend: what runs the bundle, for the record
        advance: called with the number of inputs just done; each input counts once

    Raises:
        DragomanError: the bundle's tokenizer produces other tokens than the checkpoint's, or a
            reference is not a target of the model.
    """
    _check_tokenizer(model, inputs)
    oracle, target_language = oracle_for(reference, model.manifest)
    pairs = prepared(model, inputs.references, target_language) if inputs.references else []
    limit = model.manifest.default_max_new_tokens
    expected = oracle_outputs(oracle, inputs.sources, limit, advance)
    precision = model.manifest.precision
    rounded = None if precision == "fp32" else rounded_oracle(oracle, model.manifest)
    meters = TensorMeters(model.manifest)
    distances = DistributionMeter(precision, rounded, random=inputs.random)
    for batch in forced_batches(model, oracle, inputs.sources, expected):
        meters.add(batch)
        distances.add(batch)
    tensors, distributions = meters.results(), distances.result()
    found = bundle_outputs(model, inputs.sources, limit, target_language)
    tokens = compare_tokens(
        oracle,
        inputs.sources,
        expected,
        found,
        precision,
        limit=limit,
        largest_logit=meters.largest_logit,
    )
    beams = compare_beams(model, oracle, inputs.sources, limit, target_language)
    task = compare_task(model, inputs, expected, found)
    references = None
    if inputs.references:
        references = compare_references(model, oracle, pairs, inputs.references.origin)
    judged = [*tensors, distributions, tokens, beams, task, references]
    return Parity(
        passed=all(level.passed for level in judged if level is not None),
        oracle=f"reference_model, PyTorch {torch.__version__}, fp32, without a cache",
        inputs=inputs.description,
        backend=backend,
        tensors=tuple(tensors),
        tokens=tokens,
        task=task,
        references=references,
        beams=beams,
        distributions=distributions,
    )


def _check_tokenizer(model: Model, inputs: ParityInputs) -> None:
    for text, source in zip(inputs.texts or [], inputs.sources, strict=False):
        found = model.tokenize(text, inputs.source_language)
        if found != source:
            raise DragomanError(
                f"the bundle's tokenizer is not the checkpoint's: for {text[:40]!r} expected "
                f"tokens {source[:20]}, found {found[:20]}"
            )
