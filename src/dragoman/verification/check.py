"""All three levels of parity, in order."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dragoman.errors import DragomanError
from dragoman.reference_model import AutoregressiveModel, EncoderModel, ReferenceModel
from dragoman.runtime import Model
from dragoman.runtime.decoding.batching import Encodable
from dragoman.runtime.format.records import Parity, TaskParity, TokenParity

from .checks.beams import compare_beams
from .checks.distributions import DistributionMeter
from .checks.encoders import compare_encoder
from .checks.references import compare_references, prepared
from .checks.task import compare_task
from .checks.tensors import TensorMeters
from .checks.tokens import bundle_outputs, compare_tokens
from .forced import forced_batches
from .inputs.parity_inputs import ParityInputs
from .naming import named
from .oracle import oracle_for, oracle_outputs
from .rounded_oracle import rounded_oracle

ORACLE = f"reference_model, PyTorch {torch.__version__}, fp32"


def check_parity(
    model: Model,
    reference: ReferenceModel,
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
    if isinstance(reference, EncoderModel):
        return _check_encoder(model, reference, inputs, backend, advance)
    _check_tokenizer(model, inputs)
    oracle, target_language = oracle_for(reference, model.manifest, inputs.target_language)
    pairs = prepared(model, inputs.references, target_language) if inputs.references else []
    limit = model.manifest.default_max_new_tokens
    expected = oracle_outputs(oracle, inputs.sources, limit, advance)
    precision = model.manifest.precision
    rounded: AutoregressiveModel | None = None
    if precision != "fp32":
        rounded = rounded_oracle(oracle, model.manifest)
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
    tasks: list[TaskParity] = []
    if inputs.task is not None:
        decode = inputs.decode or (lambda output: model.detokenize(output) or "")
        tasks = compare_task(model, inputs.task, decode, expected, found)
    references = None
    if inputs.references:
        references = compare_references(model, oracle, pairs, inputs.references.origin)
    judged = [*tensors, distributions, tokens, beams, *tasks, references]
    return Parity(
        passed=all(level.passed for level in judged if level is not None),
        oracle=f"{ORACLE}, without a cache",
        inputs=inputs.recorded,
        backend=backend,
        tensors=tuple(tensors),
        tokens=named(tokens, model, inputs, expected, found),
        tasks=tuple(tasks),
        references=references,
        beams=beams,
        distributions=distributions,
    )


def _check_encoder(
    model: Model,
    oracle: EncoderModel,
    inputs: ParityInputs,
    backend: str,
    advance: Callable[[int], None],
) -> Parity:
    if inputs.references is not None:
        raise DragomanError(
            f"references: expected none, {model.manifest.name} is an encoder alone and decodes "
            "nothing"
        )
    for line in inputs.lines or ():
        tokens = model.encoder.tokenize(line.source)
        if (tokens.ids, tokens.types) != (line.tokens.ids, line.tokens.types):
            raise _other_tokens(str(line.source), line.tokens.ids, tokens.ids)
    rounded = None
    if model.manifest.precision != "fp32":
        rounded = rounded_oracle(oracle, model.manifest)
    found = compare_encoder(
        model,
        oracle,
        rounded,
        [[int(token) for token in source] for source in inputs.sources],
        None if inputs.lines is None else [line.tokens.types for line in inputs.lines],
        random=inputs.random,
        advance=advance,
    )
    judged = [*found.tensors, found.vectors, found.distributions]
    return Parity(
        passed=all(level.passed for level in judged if level is not None),
        oracle=ORACLE,
        inputs=inputs.recorded,
        backend=backend,
        tensors=tuple(found.tensors),
        tokens=TokenParity(0, 0, (), True),  # it decodes nothing
        distributions=found.distributions,
        vectors=found.vectors,
    )


def _check_tokenizer(model: Model, inputs: ParityInputs) -> None:
    for text, source in zip(inputs.texts or [], inputs.sources, strict=False):
        found = model.tokenize(text, inputs.source_language)
        if found != source:
            raise _other_tokens(text, source, found)


def _other_tokens(text: str, expected: Encodable, found: Encodable) -> DragomanError:
    return DragomanError(
        f"the bundle's tokenizer is not the checkpoint's: for {text[:40]!r} expected tokens "
        f"{expected[:20]}, found {found[:20]}"
    )
