"""Runs all checks that compare a bundle with the trained model, in order.

Where they fail, the first tensor in which a bundle differs from its model is looked for.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from dragoman.errors import DragomanError, shown
from dragoman.onnx_graphs.graph_files import load_graph, module_of
from dragoman.optimize.checking.encoded_once import encoding_once
from dragoman.optimize.emulation import emulated_bundle
from dragoman.optimize.graph_values import FLOATS
from dragoman.optimize.precision.calibration import calibration_batches
from dragoman.optimize.running import difference, run, with_outputs
from dragoman.optimize.targets import find_target
from dragoman.reference_model import AutoregressiveModel, EncoderModel, ReferenceModel
from dragoman.runtime import Bundle, Model
from dragoman.runtime.backends import check_backend, open_backend
from dragoman.runtime.decoding.request import EncoderInput
from dragoman.runtime.format.parity import Check, Divergence, Parity, TaskParity, TokenParity
from dragoman.runtime.model import parts_of

from .checks.beams import compare_beams
from .checks.choices import ChoiceMeter, compare_one_pass, rounding
from .checks.distances import DistributionMeter, TensorMeters
from .checks.encoders import compare_encoder
from .checks.task import compare_references, compare_task, prepared
from .checks.tokens import bundle_outputs, compare_tokens, greedy_results, results_of_first_windows
from .inputs.items import spread
from .inputs.parity_inputs import ParityInputs
from .numerics.checking import check_numerics
from .numerics.probes import Probe, parameters_of
from .oracle import (
    for_torch,
    forced_batches,
    lengths_of,
    oracle_for,
    oracle_outputs,
    rounded_oracle,
)
from .tolerances import TOLERANCES

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
    """Compare a bundle with the trained model by all checks.

    Args:
        bundle: the stored bundle, if `model` is an emulation of it; None: the bundle of `model`

    Raises:
        DragomanError: a reference is not a target of the model.
    """
    bundle = bundle or model.bundle
    if isinstance(reference, EncoderModel):
        return _check_encoder(model, bundle, reference, inputs, backend, checks, threads, advance)
    for text, source in zip(inputs.texts or [], inputs.sources, strict=False):
        own = model.tokenize(text, inputs.source_language)
        if own != source:
            raise _other_tokens(text, source, own)
    oracle, target_language = oracle_for(reference, model.manifest, inputs.target_language)
    pairs = prepared(model, inputs.references, target_language) if inputs.references else []
    limit = model.manifest.default_max_new_tokens
    results = greedy_results(model, inputs.sources, limit, target_language)
    drafts = bundle_outputs(results)
    expected = oracle_outputs(oracle, inputs.sources, limit, advance, drafts)
    precision = model.manifest.precision
    probes = _probes(oracle, inputs, expected)
    encoding = encoding_once(model)
    numerics, coverage = check_numerics(encoding, bundle, oracle, probes, backend, threads)
    checks = [*checks, *numerics]
    rounded: AutoregressiveModel | None = None
    if precision != "fp32":  # not earlier: it and the graphs in exact form are as large
        rounded = rounded_oracle(oracle, model.manifest)
    meters = TensorMeters(model.manifest)
    distances = DistributionMeter(precision, rounded, random=inputs.random)
    choices = ChoiceMeter(oracle, limit)
    for batch in forced_batches(encoding, oracle, inputs.sources, expected):
        meters.add(batch)
        distances.add(batch)
        choices.add(batch)
    tensors = meters.results()
    distributions = distances.result() if distances.positions else None
    slack = rounding(precision, meters.largest_logit)
    results = results_of_first_windows(encoding, inputs.sources, expected, results, limit)
    found = bundle_outputs(results)
    outputs = oracle, inputs.sources, expected, found
    one_pass = compare_one_pass(encoding, *outputs, results, limit=limit, slack=slack)
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
    """Make the record of a bundle that was not run because an earlier check failed."""
    return Parity(
        passed=False,
        oracle=ORACLE,
        inputs=inputs.recorded,
        backend="none",
        tensors=(),
        tokens=TokenParity(0, 0, (), True),
        checks=tuple(checks),
    )


MOST_PROBES, FEWEST_PROBES = 8, 2
"""The numbers of inputs for the comparison in float64; the longest is one of them."""
MOST_OPERATIONS = 2e11
"""Multiplications that the oracle may take for more than the fewest."""


def _probes(
    oracle: ReferenceModel, inputs: ParityInputs, expected: Sequence[Sequence[int]]
) -> list[Probe]:
    lengths = lengths_of(inputs.sources)
    longest = max(range(len(lengths)), key=lambda i: lengths[i])
    chosen = dict.fromkeys([longest, *spread(range(len(lengths)), MOST_PROBES)])
    probes: list[Probe] = []
    tokens, parameters = 0, parameters_of(oracle)
    for i in chosen:
        source = inputs.sources[i]
        read: list[int] = []
        if not isinstance(oracle, EncoderModel):
            read = [*oracle.prompt(for_torch(source)), *expected[i][:-1]]
        name = inputs.origins[i] if inputs.origins else f"input {i}"
        tokens += lengths[i] + len(read)
        if len(probes) >= FEWEST_PROBES and tokens * parameters > MOST_OPERATIONS:
            break
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
            f"references: expected none, since {model.manifest.name} is an encoder-only model and "
            "decodes nothing"
        )
    for line in inputs.lines or ():
        tokens = parts_of(model).encoder.tokenize(line.source)
        if (tokens.ids, tokens.types) != (line.tokens.ids, line.tokens.types):
            raise _other_tokens(str(line.source), line.tokens.ids, tokens.ids)
    found = compare_encoder(
        model,
        oracle,
        # Not kept: the graphs in exact form are as large.
        None if model.manifest.precision == "fp32" else rounded_oracle(oracle, model.manifest),
        [list(map(int, source)) for source in inputs.sources],
        None if inputs.lines is None else [line.tokens.types for line in inputs.lines],
        queries=None if inputs.lines is None else [line.query for line in inputs.lines],
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
        tokens=TokenParity(0, 0, (), True),  # an encoder-only model generates no tokens
        distributions=found.distributions,
        vectors=found.vectors,
        ranks=found.ranks,
        checks=tuple(checks),
        coverage=coverage,
    )


def _other_tokens(text: str, expected: EncoderInput, found: EncoderInput) -> DragomanError:
    return DragomanError(
        f"the bundle's tokenizer is not the checkpoint's: for {shown(text)} expected tokens "
        f"{expected[:20]}, found {found[:20]}"
    )


WITH_TEXTS = 50
"""The number of divergences whose texts are recorded, by largest margin."""
MOST_CHARACTERS = 2000


def named(
    tokens: TokenParity,
    model: Model,
    inputs: ParityInputs,
    expected: Sequence[Sequence[int]],
    found: Sequence[Sequence[int]],
) -> TokenParity:
    """Add origins and texts to the divergences of level 2."""
    by_margin = sorted(tokens.divergences, key=lambda d: -d.margin)
    kept = {divergence.input for divergence in by_margin[:WITH_TEXTS]}
    decode = inputs.decode or model.detokenize

    def with_names(divergence: Divergence) -> Divergence:
        index = divergence.input
        origin = inputs.origins[index] if inputs.origins else ""
        divergence = replace(divergence, origin=origin)
        if index not in kept:
            return divergence
        return replace(
            divergence,
            source=None if inputs.texts is None else inputs.texts[index][:MOST_CHARACTERS],
            expected=_text(decode, expected[index]),
            found=_text(model.detokenize, found[index]),
        )

    one_pass = tokens.one_pass
    if one_pass is not None and one_pass.worst is not None and inputs.origins:
        origin = inputs.origins[one_pass.worst.input]
        worst = replace(one_pass.worst, origin=origin)
        one_pass = replace(one_pass, worst=worst)
    divergences = tuple(map(with_names, tokens.divergences))
    return replace(tokens, divergences=divergences, one_pass=one_pass)


def _text(decode: Callable[[Sequence[int]], str | None], tokens: Sequence[int]) -> str | None:
    try:
        text = decode(tokens)
    except DragomanError:  # the tokenizer cannot decode these tokens; their ids are recorded
        return None
    return None if text is None else text[:MOST_CHARACTERS]


@contextlib.contextmanager
def running(
    bundle: Bundle,
    threads: int | None = None,
    backend: str | None = None,
    device: str | None = None,
) -> Iterator[tuple[Model, str]]:
    """Open a bundle for the comparison, and describe what runs it for the record.

    bf16, for which ONNX Runtime has no kernels on a processor, and 16-bit graphs for engines, whose
    overflows it would hide, are emulated in float32.
    """
    manifest, backend = bundle.manifest, check_backend(bundle, backend, device).name
    graphs_of_engines = manifest.executable.format != find_target(manifest.target).executable
    halves = manifest.precision == "bf16" or (graphs_of_engines and manifest.precision != "fp32")
    if not halves or backend != "onnxruntime":
        with Model(bundle, open_backend(bundle, backend, threads, device)) as model:
            yield model, backend
        return
    with tempfile.TemporaryDirectory() as copy:
        emulated = emulated_bundle(bundle, Path(copy))
        half = "bfloat16" if manifest.precision == "bf16" else "float16"
        with Model(emulated, open_backend(emulated, backend, threads, device)) as model:
            yield model, f"onnxruntime, {half} emulated in float32"


DIFFERENCE_SOURCES = 4
"""The number of sources on which the first difference is looked for."""


def describe_first_difference(
    neutral: Bundle, bundle: Bundle, sources: Sequence[EncoderInput]
) -> str:
    """Describe the first difference beyond the tolerance of the precision.

    Args:
        neutral: a neutral bundle of the same model
    """
    if bundle.manifest.executable.format != "onnx":
        return "engines are opaque: the first differing tensor cannot be located"
    tolerance = TOLERANCES[bundle.manifest.precision]
    try:
        observed = calibration_batches(neutral, sources[:DIFFERENCE_SOURCES])
        for graph in neutral.manifest.model_graphs:
            expected, found = (load_graph(b.graph_path(graph)) for b in (neutral, bundle))
            makers = {o.name or "": node for node in expected.graph for o in node.outputs}
            operators = {
                o.name or "": node.op_type
                for node in found.graph
                for o in node.outputs
                if o.name in makers and o.dtype in FLOATS
            }
            before, after = (
                run(with_outputs(model, list(operators)), observed[graph][0].samples)
                for model in (expected, found)
            )
            for name, operator in operators.items():
                # relative to max(1, the tensor's largest value), as in parity
                _, apart = difference({name: before[name]}, {name: after[name]})
                if apart > tolerance:
                    return (
                        f"the first tensor to differ by more than {tolerance:g}: {graph}, {name} "
                        f"({operator} of {module_of(makers[name])}), which differs by {apart:.3g}"
                    )
    except DragomanError as error:  # the verdict is reported in any case
        return f"the first differing tensor cannot be located ({error})"
    return f"no tensor within the graphs differs by more than {tolerance:g}"
