"""The checks of `make gpu` besides parity, on a small model: on the processor and on doubles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dragoman import runtime
from dragoman.benchmarks.gpu import behaviour, device, engines, parity
from dragoman.benchmarks.gpu.device import memory_meter
from dragoman.benchmarks.models import bundles
from dragoman.runtime import BackendError, Model, read_bundle

from ..device_double import DoubleDevice
from ..provider_double import opened
from ..small_bundle import small_bundle


@pytest.fixture(scope="module")
def neutral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_bundle(tmp_path_factory.mktemp("small"), 32)


@pytest.fixture
def gpu(neutral: Path, monkeypatch: pytest.MonkeyPatch) -> DoubleDevice:
    """A double of a GPU, on which ONNX Runtime's CUDA provider is a double, too."""
    double = DoubleDevice(room=1 << 30)

    def load(directory: Path, *, device: str, check: str) -> Model:
        if device == "cuda":
            return opened(read_bundle(directory), double)
        return runtime.load(directory, device=device, threads=1, check="never")

    monkeypatch.setattr(behaviour, "exported", lambda directory: neutral)
    monkeypatch.setattr(behaviour, "load", load)
    monkeypatch.setattr(device, "Device", lambda: double)
    monkeypatch.setattr(behaviour, "SIZES", 4)
    monkeypatch.setattr(behaviour, "SIZES_PER_ROW", 2)
    monkeypatch.setattr(behaviour, "BATCHES", 2)
    monkeypatch.setattr(behaviour, "LARGEST", 5)
    return double


def rows_of(what: str, folder: Path, *, device: str = "cuda") -> list[dict[str, Any]]:
    options = [what, "--device", device, "--output", str(folder)]
    outcome = CliRunner().invoke(behaviour.main, options)
    assert outcome.exit_code == 0, outcome.output
    rows: list[dict[str, Any]] = json.loads((folder / f"behaviour-{what}.json").read_text())
    return rows


@pytest.mark.parametrize("what", ["threads", "sizes", "requests"])
@pytest.mark.parametrize("where", ["cuda", "cpu"])
def test_outputs_are_those_of_the_processor(
    what: str, where: str, gpu: DoubleDevice, tmp_path: Path
) -> None:
    rows = rows_of(what, tmp_path, device=where)
    assert not any(row.get("error") for row in rows)
    stopped = [row for row in rows if row.get("outcome")]
    assert all(r["same"] == r["outputs"] for r in rows if r not in stopped)
    checks = [row["check"] for row in rows]
    if what == "threads":
        assert checks == [f"thread {t}, batch {b}" for t in range(3) for b in range(2)]
    elif what == "sizes":
        assert checks == ["loaded", "2 sizes", "4 sizes"]
        assert rows[-1]["outputs"] >= 4
    else:
        assert checks[-1] == "after that"
        assert [row["outcome"] for row in stopped] == ["CancelError", "DeadlineError"]
    if where == "cuda":
        assert "launch" in gpu.log
        assert rows[-1]["taken_mb"] > 0


def test_an_error_of_the_device_is_the_result(
    gpu: DoubleDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows until then stay, and the checks go on."""
    generate = Model.generate
    calls = 0

    def failing(self: Model, *args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += self.backend.__class__.__name__ == "CudaProviderBackend"
        if calls == 2:
            calls += 1
            raise BackendError("CUDA error 700\nin a kernel")
        return generate(self, *args, **options)

    monkeypatch.setattr(Model, "generate", failing)
    first, failed, *others = rows_of("threads", tmp_path)
    assert first["same"] == first["outputs"]
    assert (failed["same"], failed["error"]) == (0, "CUDA error 700 in a kernel")
    assert len(others) == 4
    assert not any(row["error"] for row in others)


def test_embeddings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fp32, fp16 = rows_of("encoders", tmp_path, device="cpu")
    assert (fp32["check"], fp32["error"]) == ("embeddings, fp32", "")
    assert float(fp32["largest difference"]) == 0
    assert 0 < float(fp16["largest difference"]) < 0.01


def test_two_starts_of_each_kind(gpu: DoubleDevice, tmp_path: Path) -> None:
    rows = rows_of("starts", tmp_path, device="cpu")
    assert [row["check"] for row in rows] == [
        f"{turn} start {kind} close" for kind in ("with", "without") for turn in ("first", "second")
    ]
    assert [(row["exit status"], row["error"]) for row in rows] == [(0, "")] * 4


def test_a_start_that_fails_says_why(
    gpu: DoubleDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(behaviour, "START", "raise SystemExit('no kernel image')")
    for row in rows_of("starts", tmp_path, device="cpu"):
        assert (row["exit status"], row["error"]) == (1, "no kernel image")


def test_a_server_under_load(
    gpu: DoubleDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the shipped model, which has a tokenizer."""
    monkeypatch.setattr(behaviour, "SECONDS", 0.2)
    monkeypatch.setattr(behaviour, "PERIODS", 2)
    monkeypatch.setattr(behaviour, "CLIENTS", 2)
    monkeypatch.setattr(behaviour, "exported", bundles.exported)
    started, *_, last = rows_of("serve", tmp_path, device="cpu")
    assert started["check"] == "started"
    assert last["check"] == "0 s"
    assert set(last["answers"]) <= {"same text"}


@pytest.mark.engines
def test_engines_are_built_without_a_gpu(
    neutral: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the default GPUs and 8.9; not for 9.0, which TensorRT-RTX does not build for."""
    monkeypatch.setattr(engines, "exported", lambda directory: neutral)
    outcome = CliRunner().invoke(engines.main, ["--device", "cpu", "--output", str(tmp_path)])
    assert outcome.exit_code == 0, outcome.output
    rows = json.loads((tmp_path / "engines.json").read_text())
    assert [row["built for"] for row in rows] == ["default", "8.9", "9.0"]
    assert [row["outcome"] for row in rows[:2]] == ["built"] * 2
    assert "9.0" in rows[2]["outcome"] and "built" not in rows[2]["outcome"].split()[:1]


def test_parity_on_the_processor(
    neutral: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a dry run: few words, in two precisions."""
    options = ["--model", "g2p-en", "--device", "cpu", "--output", str(tmp_path)]
    outcome = CliRunner().invoke(parity.main, options)
    assert outcome.exit_code == 0, outcome.output
    report = json.loads((tmp_path / "parity-g2p-en.json").read_text())
    assert report["model"] == "g2p-en"
    assert [row["precision"] for row in report["rows"]] == ["fp16", "fp32"]
    for row in report["rows"]:
        assert (row["backend"], row["passed"], row["error"]) == ("onnxruntime", True, "")
        assert row["batch 1"].endswith("/s")


def test_the_memory_of_a_gpu_and_of_a_process(gpu: DoubleDevice, neutral: Path) -> None:
    taken = memory_meter("cuda")
    gpu.allocate(5_000_000)
    assert taken() == 5.0
    assert abs(memory_meter("cpu")()) < 100
