"""All checks of a bundle, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from dragoman.errors import DragomanError
from dragoman.reference_model import AutoregressiveModel, EncoderModel, ReferenceModel
from dragoman.runtime import Model
from dragoman.runtime.decoding.batching import Encodable
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.records import Check, Parity, TaskParity, TokenParity

from .checks.beams import compare_beams
from .checks.choices import ChoiceMeter, rounding
from .checks.distributions import DistributionMeter
from .checks.encoders import compare_encoder
from .checks.one_pass import compare_one_pass
from .checks.references import compare_references, prepared
from .checks.task import compare_task
from .checks.tensors import TensorMeters
from .checks.tokens import bundle_outputs, compare_tokens, greedy_results
from .forced import forced_batches
from .inputs.items import spread
from .inputs.parity_inputs import ParityInputs
from .naming import named
from .numerics import Probe, check_numerics
from .oracle import for_torch, oracle_for, oracle_outputs
from .rounded_oracle import rounded_oracle

ORACLE = f"reference_model, PyTorch {torch.__version__}, fp32"


def check_parity(
    model: Model,
    reference: ReferenceModel,
    inputs: ParityInputs,
    *,
    backend: str,
    bundle: Bundle | None = None,
    checks: Sequence[Check] = (),
    threads: int | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> Parity:
    """Compare a bundle with the trained model on all levels.

    Args:
        backend: what runs the bundle, for the record
        bundle: as it is stored, if what runs is an emulation of it; None: it runs itself
        checks: that were made before, for the record
        threads: of the processor, for graphs in exact form; None: all cores
        advance: called with the number of inputs just done; each input counts once

    Raises:
        DragomanError: the bundle's tokenizer produces other tokens than the checkpoint's, or a
            reference is not a target of the model.
    """
    bundle = bundle or model.bundle
    if isinstance(reference, EncoderModel):
        return _check_encoder(model, bundle, reference, inputs, backend, checks, threads, advance)
    _check_tokenizer(model, inputs)
    oracle, target_language = oracle_for(reference, model.manifest, inputs.target_language)
    pairs = prepared(model, inputs.references, target_language) if inputs.references else []
    limit = model.manifest.default_max_new_tokens
    expected = oracle_outputs(oracle, inputs.sources, limit, advance)
    precision = model.manifest.precision
    rounded: AutoregressiveModel | None = None
    if precision != "fp32":
        rounded = rounded_oracle(oracle, model.manifest)
    probes = _probes(oracle, inputs, expected)
    numerics, coverage = check_numerics(model, bundle, oracle, probes, backend, threads)
    checks = [*checks, *numerics]
    meters = TensorMeters(model.manifest)
    distances = DistributionMeter(precision, rounded, random=inputs.random)
    choices = ChoiceMeter(oracle, limit)
    for batch in forced_batches(model, oracle, inputs.sources, expected):
        meters.add(batch)
        distances.add(batch)
        choices.add(batch)
    tensors, distributions = meters.results(), distances.result()
    slack = rounding(precision, meters.largest_logit)
    results = greedy_results(model, inputs.sources, limit, target_language)
    found = bundle_outputs(results)
    outputs = oracle, inputs.sources, expected, found
    one_pass = compare_one_pass(model, *outputs, results, limit=limit, slack=slack)
    measured = None if precision == "fp32" else choices.result()
    tokens = compare_tokens(*outputs, measured, one_pass, limit=limit)
    beams = compare_beams(model, oracle, inputs.sources, limit, target_language, slack)
    tasks: list[TaskParity] = []
    if inputs.task is not None:
        decode = inputs.decode or (lambda output: model.detokenize(output) or "")
        tasks = compare_task(model, inputs.task, decode, expected, found)
    references = None
    if inputs.references:
        references = compare_references(model, oracle, pairs, inputs.references.origin)
    judged = [*checks, *tensors, distributions, tokens, beams, *tasks, references]
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
        checks=tuple(checks),
        coverage=coverage,
    )


def unrun(checks: Sequence[Check], inputs: ParityInputs) -> Parity:
    """The record of a bundle that was not run, since it is not what it should be."""
    return Parity(
        passed=False,
        oracle=ORACLE,
        inputs=inputs.recorded,
        backend="none",
        tensors=(),
        tokens=TokenParity(0, 0, (), True),
        checks=tuple(checks),
    )


MOST_PROBES = 8
"""Inputs that the graphs are compared on in float64, the longest among them."""


def _probes(
    oracle: ReferenceModel, inputs: ParityInputs, expected: Sequence[Sequence[int]]
) -> list[Probe]:
    """Some inputs, the longest first, with what the decoder reads of the oracle's outputs."""
    lengths = [
        source.shape[-1] if isinstance(source, np.ndarray) else len(source)
        for source in inputs.sources
    ]
    longest = max(range(len(lengths)), key=lambda i: lengths[i])
    chosen = dict.fromkeys([longest, *spread(range(len(lengths)), MOST_PROBES)])
    probes = []
    for i in chosen:
        source = inputs.sources[i]
        read: list[int] = []
        if not isinstance(oracle, EncoderModel):
            read = [*oracle.prompt(for_torch(source)), *expected[i][:-1]]
        name = inputs.origins[i] if inputs.origins else f"input {i}"
        probes.append(Probe(source, read, f"on {name}"))
    return probes


def _check_encoder(
    model: Model,
    bundle: Bundle,
    oracle: EncoderModel,
    inputs: ParityInputs,
    backend: str,
    checks: Sequence[Check],
    threads: int | None,
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
    probes = _probes(oracle, inputs, ())
    numerics, coverage = check_numerics(model, bundle, oracle, probes, backend, threads)
    checks = [*checks, *numerics]
    judged = [*checks, *found.tensors, found.vectors, found.distributions]
    return Parity(
        passed=all(level.passed for level in judged if level is not None),
        oracle=ORACLE,
        inputs=inputs.recorded,
        backend=backend,
        tensors=tuple(found.tensors),
        tokens=TokenParity(0, 0, (), True),  # it decodes nothing
        distributions=found.distributions,
        vectors=found.vectors,
        checks=tuple(checks),
        coverage=coverage,
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
