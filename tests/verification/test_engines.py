"""Engines are compared with the trained model where a GPU runs them: here, on doubles of both."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman import api
from dragoman.optimize.tensorrt import engine_bundle, request
from dragoman.optimize.tensorrt.builder import SerializedEngine
from dragoman.reference_model import (
    LanguageModel,
    ModelConfig,
    Transformer,
    as_batch,
    save_checkpoint,
)
from dragoman.runtime import load, read_bundle
from dragoman.runtime.backends import cuda
from dragoman.runtime.backends.cuda import Gpu
from dragoman.runtime.backends.interface import BackendError
from dragoman.runtime.backends.tensorrt import backend as backends
from dragoman.runtime.backends.tensorrt import engines as engine_checks
from dragoman.runtime.backends.tensorrt.packages import Package
from dragoman.runtime.format.bundle import read_known_answers
from dragoman.runtime.format.known_answers import GeneratedAnswer
from dragoman.runtime.format.manifest import Precision, Range, TensorRTEngines
from dragoman.runtime.format.parity import Parity
from dragoman.runtime.oracle_comparison import divergence

from ..bundle_files import record_again
from ..device_double import DoubleDevice
from ..runtime.backends.gpu_models import RECORDS, REPORT
from ..serving.conftest import make_speech, make_vectors
from ..tensorrt_api import checked_module, recorded
from ..tensorrt_double import package_module, plan
from ..zoo import LETTERS, letters_model

GPU = Gpu("NVIDIA L4", "8.9", "13.0")
NO_GPU = BackendError("found no NVIDIA GPU: there is no NVIDIA driver")
FAILED = "engines on tensorrt-rtx, NVIDIA L4: parity failed: "
Damage = Callable[[Path], None]


@pytest.fixture(scope="module")
def reference() -> Transformer:
    return letters_model()


@pytest.fixture(scope="module")
def checkpoint(reference: Transformer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoints") / "letters"
    save_checkpoint(reference, directory)
    return directory


class Workplace:
    """A machine that builds engines of the double, with or without a GPU that runs them.

    Attributes:
        damage: changes the graphs that the engines compute
    """

    def __init__(self, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.damage: Damage = lambda graphs: None
        self._kept, self._patch = kept, monkeypatch
        monkeypatch.setenv("XDG_CACHE_HOME", str(kept / "cache"))
        device = DoubleDevice()
        module = checked_module(package_module(device), recorded(RECORDS[0]))
        package = Package("tensorrt-rtx", module, "1.7.1.116", "13")
        for place in (engine_bundle, request, engine_checks):
            monkeypatch.setattr(place, "find_package", lambda target: package)
        for place in (engine_checks, backends):
            monkeypatch.setattr(place, "Device", lambda index=0: device)
        monkeypatch.setattr(engine_bundle, "build_engine", self._engine)
        self.gpu(GPU)

    def gpu(self, gpu: Gpu | None) -> None:
        def find_gpu(index: int = 0) -> Gpu:
            if gpu is None:
                raise NO_GPU
            return gpu

        for place in (cuda, engine_checks):
            self._patch.setattr(place, "find_gpu", find_gpu)

    def _engine(self, package: Any, graph: Path, spec: Any, options: Any, **_: Any) -> Any:
        graphs = self._kept / "graphs"
        if graph.name == "encoder.onnx" and graphs.exists():
            shutil.rmtree(graphs)
        if not graphs.exists():
            shutil.copytree(graph.parent, graphs)
            self.damage(graphs)
        return SerializedEngine(plan(graphs / graph.name, spec, options.profiles), REPORT, ())


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workplace:
    return Workplace(tmp_path, monkeypatch)


def build(checkpoint: Path, output: Path, **options: Any) -> api.BuiltBundle:
    return api.build(checkpoint, output, target="tensorrt-rtx", limit=6, threads=1, **options)


def parity_of(directory: Path) -> Parity | None:
    engines = read_bundle(directory).manifest.executable
    assert isinstance(engines, TensorRTEngines)
    return engines.parity


def shifted(graphs: Path) -> None:
    """Some weights are other than those that were proven."""
    weights = np.fromfile(graphs / "weights.bin", np.float32)
    weights[len(weights) // 3 :][:400] += 0.3
    weights.tofile(graphs / "weights.bin")


def test_build_runs_the_engines(workplace: Workplace, checkpoint: Path, tmp_path: Path) -> None:
    built = build(checkpoint, tmp_path / "bundle")
    assert built.not_run is None
    parity = parity_of(tmp_path / "bundle")
    assert parity is not None and parity.passed
    assert parity.backend == "tensorrt-rtx, NVIDIA L4"
    known = read_known_answers(built.bundle)
    assert known is not None
    greedy = [a for a in known.answers if isinstance(a, GeneratedAnswer) and a.num_beams == 1]
    assert parity.tokens.identical == parity.tokens.sequences == len(greedy) >= 5
    assert parity.tensors[0].difference < 1e-5
    assert parity.distributions is not None
    assert parity.distributions.positions == sum(len(a.tokens) for a in greedy)
    assert parity.distributions.bundle.same_choice == 1
    assert parity.distributions.bundle.largest < 1e-6
    assert built.bundle.manifest.parity == built.parity, "that of the graphs stays"


def test_stored_log_probabilities_are_the_trained_models(
    workplace: Workplace, checkpoint: Path, reference: Transformer, tmp_path: Path
) -> None:
    known = read_known_answers(build(checkpoint, tmp_path / "bundle").bundle)
    assert known is not None
    answer = next(a for a in known.answers if isinstance(a, GeneratedAnswer) and a.num_beams == 1)
    read = [reference.config.start_token_id, *answer.prefix, *answer.tokens[:-1]]
    with torch.inference_mode():
        source, mask = as_batch([list(answer.source)], reference.config)
        logits = reference(source, mask, torch.tensor([read]))[0]
    expected = logits.double().log_softmax(-1)[len(answer.prefix) :]
    assert len(answer.likely) == len(answer.tokens)
    for row, tokens, values in zip(
        expected, answer.likely, answer.oracle_log_probabilities, strict=True
    ):
        assert {*tokens} == {*row.topk(5).indices.tolist()}
        assert values == pytest.approx(row[list(tokens)].tolist(), abs=1e-5)


def test_damaged_engines_are_refused(
    workplace: Workplace, checkpoint: Path, tmp_path: Path
) -> None:
    """The graphs pass; the engines that were built from them compute something else."""
    workplace.damage = shifted
    with pytest.raises(
        api.ParityFailedError, match="engines on tensorrt-rtx, NVIDIA L4: parity"
    ) as caught:
        build(checkpoint, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()
    assert not caught.value.parity.passed
    with pytest.raises(api.ParityFailedError, match="is marked as failed"):
        build(checkpoint, tmp_path / "bundle", keep_failed=True)
    parity = parity_of(tmp_path / "bundle")
    assert parity is not None and not parity.passed
    manifest = read_bundle(tmp_path / "bundle").manifest
    assert manifest.parity is not None and manifest.parity.passed


def test_an_engine_that_cannot_be_loaded_is_refused(
    workplace: Workplace, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        engine_bundle, "build_engine", lambda *_, **__: SerializedEngine(b"nothing", REPORT, ())
    )
    with pytest.raises(api.ParityFailedError) as caught:
        build(checkpoint, tmp_path / "bundle")
    assert "encoder.engine: tensorrt-rtx 1.7.1.116 cannot load this engine" in str(caught.value)
    assert ".bundle.partial" not in str(caught.value)


@pytest.fixture
def elsewhere(workplace: Workplace, checkpoint: Path, tmp_path: Path) -> Path:
    """A bundle that was built without a GPU, on a machine that has one."""
    workplace.gpu(None)
    built = build(checkpoint, tmp_path / "bundle")
    assert built.not_run is not None and "found no NVIDIA GPU" in built.not_run
    assert ".bundle.partial" not in built.not_run
    workplace.gpu(GPU)
    return tmp_path / "bundle"


def test_without_a_gpu_the_manifest_says_so(elsewhere: Path, workplace: Workplace) -> None:
    manifest = json.loads((elsewhere / "manifest.json").read_text())
    assert manifest["executable"]["parity"] is None
    workplace.gpu(None)
    for run in (
        lambda: api.verify_known_answers(elsewhere),
        lambda: api.verify(elsewhere, "g2p-en"),
    ):
        with pytest.raises(BackendError, match=r"^engines not run: .*found no NVIDIA GPU"):
            run()


def test_a_gpu_of_another_capability_does_not_run_them(
    workplace: Workplace, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "check_capabilities", lambda *_: None)
    monkeypatch.setattr(engine_bundle, "check_capabilities", lambda *_: None)
    engines = api.EngineRequest(compute_capabilities=("12.0",))
    built = build(checkpoint, tmp_path / "bundle", engines=engines)
    assert built.not_run is not None
    assert "its engines are for compute capability 12.0, found 8.9 (NVIDIA L4)" in built.not_run


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings; what is below may be logged or not, as other tests left the loggers."""
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_the_first_load_offers_verify_once(
    elsewhere: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings() -> list[str]:
        caplog.clear()
        load(elsewhere).close()
        return warnings_of(caplog)

    (warning,) = warnings()
    assert warning.endswith(
        f"its engines have not been compared with the oracle: run dragoman verify {elsewhere}"
    )
    assert warnings() == []


def test_verify_compares_them_without_the_checkpoint(
    elsewhere: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = {path.name: path.read_bytes() for path in elsewhere.iterdir()}
    verification = api.verify_known_answers(elsewhere)
    assert verification.passed and verification.parity is not None
    assert verification.parity.passed and verification.parity.tokens.sequences >= 5
    assert {path.name: path.read_bytes() for path in elsewhere.iterdir()} == before
    load(elsewhere).close()
    assert warnings_of(caplog) == [], "the success is remembered"


def test_verify_finds_engines_that_differ_from_the_oracle(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where they compute what the graphs computed."""
    known = json.loads((elsewhere / "known_answers.json").read_text())
    for answer in known["answers"]:
        for values in answer.get("oracle_log_probabilities", ()):
            values[0] = min(0.0, values[0] - 0.01)
    (elsewhere / "known_answers.json").write_text(json.dumps(known))
    record_again(elsewhere)
    verification = api.verify_known_answers(elsewhere)
    assert verification.problem is not None
    assert "parity failed: log_probabilities differs by" in verification.problem
    assert all(problem is None for run in verification.runs.values() for problem in run)


def test_verify_with_the_checkpoint_is_recorded_beside_the_graphs_parity(
    elsewhere: Path, checkpoint: Path
) -> None:
    graphs = read_bundle(elsewhere).manifest.parity
    assert api.verify(elsewhere, checkpoint, record=True, limit=3).passed
    parity = parity_of(elsewhere)
    assert parity is not None and parity.passed and parity.backend == "tensorrt-rtx"
    assert read_bundle(elsewhere).manifest.parity == graphs


def test_engines_of_one_row_are_verified_in_batches_of_one(
    workplace: Workplace, checkpoint: Path, tmp_path: Path
) -> None:
    profile = api.EngineRequest(batches=(Range(1, 1, 1),))
    build(checkpoint, tmp_path / "bundle", engines=profile)
    verification = api.verify(tmp_path / "bundle", checkpoint, limit=3)
    assert verification.passed, verification.problem
    assert verification.parity.coverage is not None
    assert verification.parity.coverage.batch_sizes == (1,)


@pytest.mark.parametrize(
    ("kind", "precision"), [("bert", "int8"), ("whisper", "fp32"), ("lm", "fp16")]
)
def test_each_kind_of_model_and_precision(
    kind: str, precision: Precision, workplace: Workplace, tmp_path: Path
) -> None:
    """The double computes in 16 bits, the graphs at build emulate them in 32."""
    checkpoint = tmp_path / kind
    if kind == "lm":
        sizes = {"source_vocab_size": 0, "encoder_layers": 0, "max_source_positions": 0}
        torch.manual_seed(0)
        config = ModelConfig.from_dict(LETTERS | sizes | {"max_target_positions": 60})
        save_checkpoint(LanguageModel(config).eval(), checkpoint)
    else:
        {"bert": make_vectors, "whisper": make_speech}[kind](tmp_path / "neutral")
    build(checkpoint, tmp_path / "bundle", precision=precision)
    parity = parity_of(tmp_path / "bundle")
    assert parity is not None and parity.passed
    known = read_known_answers(read_bundle(tmp_path / "bundle"))
    assert known is not None and (known.allowed is None) == (precision == "fp32")
    (tensor,) = parity.tensors
    assert tensor.name == ("output" if kind == "bert" else "log_probabilities")
    assert tensor.difference > 0
    if kind == "bert":
        assert tensor.tolerance == known.allowed
    else:
        assert parity.distributions is not None and parity.distributions.allowed == known.allowed


def test_a_summary_of_distributions_is_no_further_than_the_whole() -> None:
    generator = np.random.default_rng(0)
    p, q = (np.log(generator.dirichlet(np.full(50, 0.2), 200)) for _ in range(2))
    q = p + 0.1 * (q - p).clip(-5, 5)
    q -= np.logaddexp.reduce(q, axis=1, keepdims=True)
    for one, other in zip(p, q, strict=True):
        whole = float((np.exp(one) * (one - other)).sum())
        best = np.argsort(-one)[:5]
        assert 0 <= divergence(one[best], other[best]) <= whole + 1e-9
        assert divergence(one[best], one[best]) == pytest.approx(0, abs=1e-12)
