"""Runs the checks of weights, graphs, steps, choices and batches, on probes.

Weights are compared with the checkpoint's, the graphs in exact form with the oracle, and the cached
path and batches with one pass, in exact form and as the bundle runs: a bundle that passes computes
the checkpoint's function, up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np

from dragoman.optimize.checking.encoded_once import encoding_once
from dragoman.optimize.exact import exact_model
from dragoman.optimize.graph_pass import PassError
from dragoman.reference_model import AutoregressiveModel, ReferenceModel
from dragoman.runtime import Model
from dragoman.runtime.backends.interface import BackendError
from dragoman.runtime.decoding.request import EncoderInput, pad
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.parity import Check, Coverage

from ..checks.distances import DistanceMeter
from ..inputs.parity_inputs import random_inputs
from ..oracle import oracle_pass
from ..stored.checkpoint_weights import CheckpointWeights
from ..stored.weights import compare_weights
from ..tolerances import NEGLIGIBLE, Slack
from .batches import batch_sizes, compare_batches, is_promised, most_windows
from .graphs import compare_graphs, measure_graphs
from .optional_graphs import compare_alignment, compare_attention, compare_candidates
from .probes import Probe, batch_of, parameters_of, probes_for, share_covered, short_probes
from .products import compare_products
from .steps import LAST_STEPS, compare_steps, most_steps

SIZE_SLACK: dict[Precision, float] = {
    "fp32": 3e-5,
    "fp16": 1e-2,
    "bf16": 8e-2,
    "int8": 0.1,
    "int4": 0.1,
}
"""How far outputs of an encoder in a batch may be from those of a single source, relative to the
largest, on backends and targets that are not batch-invariant."""


def check_numerics(
    model: Model,
    bundle: Bundle,
    oracle: ReferenceModel,
    inputs: Sequence[Probe],
    backend: str,
    threads: int | None = None,
) -> tuple[list[Check], Coverage]:
    """Run the checks, in the order in which they explain each other.

    Args:
        bundle: as it is stored; what runs may be an emulation of it
        inputs: some inputs of the model, with the oracle's outputs as targets
    """
    sounds: list[EncoderInput] = []  # at least two windows of audio
    if oracle.config.takes_audio:
        sounds = [probe.source for probe in inputs]
        if len(sounds) < 2:
            sounds += random_inputs(oracle, 2).sources
    capacity, short = probes_for(oracle, sounds), short_probes(oracle, sounds)
    probes = [*capacity, *inputs]
    promised, windows = is_promised(model, backend), most_windows(parameters_of(oracle))
    checks: list[Check] = []
    checkpoint = CheckpointWeights.of(oracle)
    weights = compare_weights(bundle, checkpoint)
    if weights is not None:
        shown = [*inputs, *short]
        shown += [probe for probe in capacity[:2] if not probe.is_long]
        products = compare_products(bundle, checkpoint, oracle, model.manifest.model, shown)
        checks += [weights] if products is None else [weights, products]
    slack = None
    try:
        with _exact(model, bundle, checkpoint, backend, threads) as exact:
            if exact is not None:
                exact = encoding_once(exact)
                meters = measure_graphs(exact, oracle, probes)
                checks.append(compare_graphs(meters, probes))
                slack = Slack(meters["logits"].allowed if "logits" in meters else None)
                some = [*inputs, *short][0]
                checks += _optional_graphs(exact, bundle, oracle, some)
                if exact is not model:
                    checks += _steps(exact, oracle, capacity, inputs, short, slack)
                    if not promised:  # bits of the bundle itself tell more
                        checks.append(compare_batches(exact, short, windows, slack, promised=False))
    except (PassError, BackendError) as error:
        problem = f"the graphs cannot be run without rounding: {error}"
        checks.append(Check("graphs", 0, "channels", 1, False, None, problem))
    graphs = slack is not None
    if model.manifest.precision != "fp32" or slack is None:
        slack = _rounded_slack(model, oracle, short)
    checks += _steps(model, oracle, capacity, inputs, short, slack)
    checks.append(compare_batches(model, short, windows, slack, promised=promised))
    compared = 0 if weights is None else weights.compared
    covered = _coverage(model, oracle, probes, batch_sizes(model, short, windows))
    return merged(checks), replace(covered, weights=compared, graphs=graphs)


def _coverage(
    model: Model, oracle: ReferenceModel, probes: Sequence[Probe], sizes: Sequence[int]
) -> Coverage:
    config, spec = oracle.config, model.manifest.model
    sources = [] if config.takes_audio else [list(p.source) for p in probes if len(p.source)]
    targets = [probe.read for probe in probes if len(probe.read)]
    longest = max(map(len, targets), default=0)
    return Coverage(
        weights=0,
        graphs=False,
        source_lengths=_range(list(map(len, sources))),
        target_lengths=_range(list(map(len, targets))),
        source_vocabulary=share_covered(config.source_vocab_size or 0, sources),
        target_vocabulary=share_covered(config.target_vocab_size, targets),
        positions=spec.max_target_positions,
        cached_positions=min(longest, most_steps(parameters_of(oracle)) + LAST_STEPS),
        batch_sizes=tuple(sizes),
    )


def _range(lengths: Sequence[int]) -> tuple[int, ...]:
    return (min(lengths), max(lengths)) if lengths else ()


def _optional_graphs(
    exact: Model, bundle: Bundle, oracle: ReferenceModel, probe: Probe
) -> list[Check]:
    found = [compare_attention(exact, oracle, probe), compare_alignment(exact, oracle, probe)]
    if isinstance(oracle, AutoregressiveModel):
        spec = exact.manifest.model
        source, mask = batch_of([probe], spec)
        logits = exact.backend.score(source, mask, np.array([probe.read]))
        suppressed = oracle.generation.suppressed_token_ids
        found.append(compare_candidates(bundle, logits[0].astype(np.float32), suppressed))
    return [check for check in found if check is not None]


def _steps(
    model: Model,
    oracle: ReferenceModel,
    capacity: Sequence[Probe],
    inputs: Sequence[Probe],
    short: Sequence[Probe],
    slack: Slack,
) -> Sequence[Check]:
    if not isinstance(oracle, AutoregressiveModel):
        return ()
    longest = sorted(capacity[:3], key=lambda probe: -len(probe.read))
    # A long one has a batch of its own, or all others would be padded to its length.
    stepped = longest[:1] if longest[0].is_long else [*longest[:2], *inputs[:1]]
    joining = sorted(short, key=lambda probe: -len(probe.read))[:2]
    suppressed = oracle.generation.suppressed_token_ids
    return compare_steps(model, stepped, joining, suppressed, slack, parameters_of(oracle))


def _exact(
    model: Model, bundle: Bundle, checkpoint: CheckpointWeights, backend: str, threads: int | None
) -> AbstractContextManager[Model | None]:
    manifest = bundle.manifest
    if manifest.executable.format != "onnx":
        return nullcontext()
    if manifest.precision == "fp32" and backend == "onnxruntime":
        return nullcontext(model)
    return exact_model(bundle, checkpoint.expected, threads)


def _rounded_slack(model: Model, oracle: ReferenceModel, probes: Sequence[Probe]) -> Slack:
    size = SIZE_SLACK[model.manifest.precision]
    if not isinstance(oracle, AutoregressiveModel):
        return Slack(None, of_size=size)
    spec, meter = model.manifest.model, DistanceMeter()
    for probe in probes:
        source, mask = batch_of([probe], spec)
        read, _ = pad([probe.read], spec.pad_token_id)
        _, expected = oracle_pass(oracle, source, mask, read)
        found = model.backend.score(source, mask, read)
        meter.add(expected[0], np.asarray(found[0]))
    return Slack(None, max(NEGLIGIBLE, meter.result().mean), size)


def merged(checks: Sequence[Check]) -> list[Check]:
    """Merge checks of the same name into one, which fails if one of them does."""
    by_name: dict[str, list[Check]] = {}
    for check in checks:
        by_name.setdefault(check.name, []).append(check)
    return [
        Check(
            name,
            sum(check.compared for check in same),
            same[0].unit,
            sum(check.differing for check in same),
            all(check.passed for check in same),
            max((check.worst for check in same if check.worst is not None), default=None),
            next((check.problem for check in same if check.problem), ""),
        )
        for name, same in by_name.items()
    ]
