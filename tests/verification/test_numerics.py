"""Graphs in exact form, steps and batches: right bundles pass, faults that outputs hide do not."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dragoman.optimize.exact import exact_model
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import Transformer
from dragoman.reference_model.stacks import SinusoidalPositions
from dragoman.runtime import Model
from dragoman.runtime.backends import open_backend
from dragoman.runtime.backends.onnxruntime import cpu, cpu_state
from dragoman.runtime.format.parity import Check, Coverage, Parity, TokenParity
from dragoman.verification.numerics import graphs
from dragoman.verification.numerics import probes as making
from dragoman.verification.numerics.checking import check_numerics
from dragoman.verification.numerics.graphs import InFloat64
from dragoman.verification.numerics.optional_graphs import compare_candidates
from dragoman.verification.numerics.probes import Probe, probes_for, share_covered, short_probes
from dragoman.verification.numerics.steps import most_steps
from dragoman.verification.oracle import oracle_pass
from dragoman.verification.stored.checkpoint_weights import CheckpointWeights
from dragoman.verification.verdict import describe_proof

from .test_configurations import CONFIGURATIONS

INPUTS = [Probe([3, 5, 2], [1, 4, 4], "on one"), Probe([7], [1, 9], "on another")]


def checked(model: Model, reference: Transformer) -> tuple[dict[str, Check], Coverage]:
    checks, covered = check_numerics(model, model.bundle, reference, INPUTS, "onnxruntime", 1)
    return {check.name: check for check in checks}, covered


def test_a_right_bundle_passes_and_the_record_says_what_was_covered(
    bundle: Model, reference: Transformer
) -> None:
    checks, covered = checked(bundle, reference)
    assert list(checks) == ["weights", "graphs", "candidates", "steps", "scores", "batches"]
    assert all(check.passed and not check.problem for check in checks.values())
    parameters = sum(parameter.numel() for parameter in reference.parameters())
    assert covered.weights >= parameters and covered.graphs
    assert (covered.source_lengths, covered.target_lengths) == ((1, 16), (2, 12))
    assert covered.source_vocabulary == covered.target_vocabulary == 1
    assert covered.cached_positions == covered.positions == 12
    assert covered.batch_sizes == (1, 2, 3, 5, 8, 33, 65)


def test_a_suppressed_candidate_is_a_difference(bundle: Model) -> None:
    vocabulary = bundle.manifest.model.target_vocab_size
    logits = np.random.default_rng(0).standard_normal((3, vocabulary)).astype(np.float32)
    right = compare_candidates(bundle.bundle, logits, ())
    wrong = compare_candidates(bundle.bundle, logits, range(2, vocabulary))
    assert right is not None and right.passed
    assert wrong is not None and wrong.problem.startswith("candidate 0 is token")


def test_probes_reach_both_ends_and_every_token(reference: Transformer) -> None:
    probes = probes_for(reference)
    assert [(len(p.source), len(p.read)) for p in probes[:2]] == [(16, 12), (15, 11)]
    config = reference.config
    assert {p.read[0] for p in probes} == {config.start_token_id}
    assert share_covered(17, [list(map(int, p.source)) for p in probes]) == 1
    assert share_covered(19, [p.read for p in probes]) == 1
    short = short_probes(reference)
    assert len({len(p.source) for p in short}) > 3 and len({len(p.read) for p in short}) > 3


@pytest.mark.parametrize(
    ("target", "precision"),
    [("cpu", "int8"), ("cpu", "int4"), ("neutral", "int8"), ("neutral", "bf16")],
)
def test_the_exact_form_of_a_rounded_bundle_rounds_nothing(
    target: str, precision: Any, bundle: Model, reference: Transformer, tmp_path: Path
) -> None:
    """With the weights of the bundle that it was made from, it computes what that one does."""
    rounded = optimize_bundle(bundle.bundle, tmp_path, target=target, precision=precision)
    source, mask = np.array([[3, 5, 2, 7], [4, 4, 0, 0]]), np.arange(4) < [[4], [2]]
    read = np.array([[1, 4, 9], [1, 2, 3]])
    expected = bundle.backend.score(source, mask, read)
    with exact_model(rounded, CheckpointWeights.of(reference).expected, 1) as exact:
        found = exact.backend.score(source, mask, read)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)
    with exact_model(rounded, threads=1) as own:  # with its own weights it does not
        assert np.abs(own.backend.score(source, mask, read) - expected).max() > 1e-3


class Faulty:
    """A backend whose logits a function changes."""

    def __init__(self, backend: Any, **changes: Callable[..., Any]) -> None:
        self._backend, self._changes = backend, changes

    def __getattr__(self, name: str) -> Any:
        return self._changes.get(name, getattr(self._backend, name))


class LateState:
    """A state whose logits are the step's before."""

    def __init__(self, state: Any) -> None:
        self._state, self._last = state, cast(Any, None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def advance(self) -> Any:
        prediction = self._state.advance()
        given = prediction.logits.copy()
        last, late = self._last, given
        if last is not None and last.shape == given.shape:
            late = last
        self._last = given
        return dataclasses.make_dataclass("P", ["logits", "choice"])(late, prediction.choice)

    def join(self, other: Any, sources: Any) -> None:
        self._state.join(other._state, sources)


def with_backend(model: Model, **changes: Callable[..., Any]) -> Model:
    return Model(model.bundle, cast(Any, Faulty(model.backend, **changes)))


def test_a_cached_path_that_lags_behind_is_found(bundle: Model, reference: Transformer) -> None:
    start = bundle.backend.start
    lagging = with_backend(bundle, start=lambda *a, **k: LateState(start(*a, **k)))
    checks, _ = checked(lagging, reference)
    assert checks["weights"].passed and checks["graphs"].passed
    assert not checks["steps"].passed and not checks["scores"].passed
    assert checks["steps"].problem.startswith(
        "a step through the cache is not one pass: logits differ by "
    )
    assert " at position 1 of 12, " in checks["steps"].problem


@pytest.mark.parametrize("size", [1, 3, 65])
def test_a_fault_at_one_batch_size_is_found(
    size: int, bundle: Model, reference: Transformer
) -> None:
    score = bundle.backend.score

    def changed(source: Any, mask: Any, target: Any, positions: Any = None) -> Any:
        logits = score(source, mask, target, positions).copy()
        if len(target) == size and target.shape[1] <= 13 and source.shape[1] <= 12:
            logits[-1, 0, 0] += 0.5
        return logits

    checks, _ = checked(with_backend(bundle, score=changed), reference)
    assert not checks["batches"].passed
    assert " differs from the same source in a batch of one: logits of one pass differ by 0.5" in (
        checks["batches"].problem
    )


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_float64_without_a_second_copy_of_the_weights(name: str, make_model: Any) -> None:
    """The same as a copy of the model in float64, at the positions that are asked for."""
    model = make_model(**CONFIGURATIONS[name])
    generator = np.random.default_rng(0)
    source, read = generator.integers(3, 10, (3, 7)), generator.integers(3, 10, (3, 6))
    mask, positions = np.arange(7) < [[7], [1], [4]], np.array([0, 3, 5])
    wide_cross, wide = oracle_pass(copy.deepcopy(model).double(), source, mask, read)
    with InFloat64():
        cross, logits = oracle_pass(model, source, mask, read, positions)
    assert logits.dtype == np.float64
    np.testing.assert_allclose(logits, wide[:, positions], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(cross, wide_cross, rtol=1e-12, atol=1e-12)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_logits_of_some_positions(bundle: Model) -> None:
    source, read = np.array([[3, 5, 2], [7, 0, 0]]), np.array([[1, 4, 4, 9], [1, 9, 3, 3]])
    mask, positions = np.arange(3) < [[3], [1]], np.array([1, 3])
    every = bundle.backend.score(source, mask, read)
    some = bundle.backend.score(source, mask, read, positions)
    np.testing.assert_array_equal(some, every[:, positions])


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
@pytest.mark.parametrize("rows", [1, 3])
def test_long_targets_of_large_vocabularies_are_read_in_parts(
    rows: int, precision: Any, bundle: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bundle.bundle
    if precision != "fp32":
        made = optimize_bundle(bundle.bundle, tmp_path, precision=precision)
    generator = np.random.default_rng(rows)
    source, read = (generator.integers(3, 10, (rows, length)) for length in (5, 11))
    mask, positions = np.ones((rows, 5), bool), np.array([0, 4, 5, 9])

    def steps() -> list[NDArray[Any]]:
        state = backend.start(source, mask, read[:, :8], 11)
        found = []
        for token in read[:, 8:].T:
            found.append(state.advance().logits.copy())
            state.feed(token)
        return found

    backend = open_backend(made, "onnxruntime", 1)
    whole, stepped = backend.score(source, mask, read), steps()
    for module in (cpu, cpu_state):
        monkeypatch.setattr(module, "LOGITS_AT_ONCE", 3 * made.manifest.model.target_vocab_size)
    parts, some = (backend.score(source, mask, read, p) for p in (None, positions))
    tolerance = {"fp32": 1e-5}.get(precision, 0.05) * float(np.abs(whole).max())
    np.testing.assert_allclose(parts, whole, atol=tolerance)
    np.testing.assert_allclose(some, whole[:, positions], atol=tolerance)
    np.testing.assert_allclose(np.stack(steps()), np.stack(stepped), atol=tolerance)


def test_a_large_vocabulary_is_compared_at_some_positions(
    bundle: Model, reference: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of an early position is found at later ones, whose attention reads it."""
    monkeypatch.setattr(graphs, "MOST_LOGITS", 3 * 19)
    probes = [Probe([3, 5], [1, *range(2, 12)], "long")]
    right = graphs.measure_graphs(bundle, reference, probes)["logits"]
    assert (right.excess <= 1).all()
    wrong = copy.deepcopy(reference)
    positions = cast(SinusoidalPositions, wrong.decoder.embedding.positions)
    positions.table[1, 0] += 1e-3  # logits are compared at positions 0, 5 and 10
    assert graphs.measure_graphs(bundle, wrong, probes)["logits"].excess.max() > 1


def test_what_is_too_long_for_float64_is_compared_in_float32(
    bundle: Model, reference: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault is at a position that only the long probe has."""
    monkeypatch.setattr(graphs, "MOST_OPERATIONS", 0)
    monkeypatch.setattr(making, "MOST_SCORES", 16)
    given = [Probe([3, 5], [1, *range(2, 12)], "long"), Probe([3], [1, 2], "short")]
    entered: list[str] = []
    enter: Any = InFloat64.__enter__

    def counted(mode: InFloat64) -> Any:
        entered.append("wide")
        return enter(mode)

    monkeypatch.setattr(InFloat64, "__enter__", counted)
    for meter in graphs.measure_graphs(bundle, reference, given).values():
        assert (meter.excess <= 1).all()
    assert entered == ["wide"]
    wrong = copy.deepcopy(reference)
    positions = cast(SinusoidalPositions, wrong.decoder.embedding.positions)
    positions.table[7, 0] += 1e-3
    meter = graphs.measure_graphs(bundle, wrong, given)["logits"]
    assert meter.excess.max() > 1
    assert set(meter.places[meter.excess > 1]) == {0}


@pytest.mark.parametrize(("parameters", "steps"), [(1, 256), (10**8, 200), (10**10, 32)])
def test_large_models_take_fewer_steps(parameters: int, steps: int) -> None:
    assert most_steps(parameters) == steps


def test_what_a_proof_covers_is_said() -> None:
    covered = Coverage(1234, True, (1, 16), (2, 12), 1.0, 0.5, 40, 20, (1, 2))
    parity = Parity(True, "", "", "", (), TokenParity(0, 0, (), True), coverage=covered)
    assert describe_proof(parity) == (
        "This proof covers all weights (1,234 compared with the checkpoint's), everything that the "
        "graphs compute, sources of 1 to 16 tokens, targets of 2 to 12 tokens, 20 of 40 cached "
        "positions, batches of 1, 2. It does not cover faults at single target tokens (50% of them "
        "were read); faults at single cached positions between; batches of other sizes."
    )
    assert describe_proof(dataclasses.replace(parity, passed=False)) == ""
    assert describe_proof(dataclasses.replace(parity, coverage=None)) == ""
