"""All three levels of parity, in order."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dragoman.errors import DragomanError
from dragoman.reference_model import Transformer
from dragoman.runtime import Model
from dragoman.runtime.format.records import Parity

from .inputs import ParityInputs
from .oracle import oracle_for, oracle_outputs
from .references import compare_references, prepared
from .strategy import compare_beams
from .task import compare_task
from .tensors import compare_tensors
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
    tensors, largest_logit = compare_tensors(model, oracle, inputs.sources, expected)
    found = bundle_outputs(model, inputs.sources, limit, target_language)
    tokens = compare_tokens(
        oracle,
        inputs.sources,
        expected,
        found,
        model.manifest.precision,
        limit=limit,
        largest_logit=largest_logit,
    )
    beams = compare_beams(model, oracle, inputs.sources, limit, target_language)
    task = compare_task(model, inputs, expected, found)
    references = None
    if inputs.references:
        references = compare_references(model, oracle, pairs, inputs.references.origin)
    return Parity(
        passed=all(t.passed for t in tensors)
        and tokens.passed
        and (beams is None or beams.passed)
        and (task is None or task.passed)
        and (references is None or references.passed),
        oracle=f"reference_model, PyTorch {torch.__version__}, fp32, without a cache",
        inputs=inputs.description,
        backend=backend,
        tensors=tuple(tensors),
        tokens=tokens,
        task=task,
        references=references,
        beams=beams,
    )


def _check_tokenizer(model: Model, inputs: ParityInputs) -> None:
    for text, source in zip(inputs.texts or [], inputs.sources, strict=False):
        found = model.tokenize(text, inputs.source_language)
        if found != source:
            raise DragomanError(
                f"the bundle's tokenizer is not the checkpoint's: for {text[:40]!r} expected "
                f"tokens {source[:20]}, found {found[:20]}"
            )
