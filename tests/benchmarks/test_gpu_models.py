"""The models that `make gpu` checks and measures, in small stand-ins, as far as that goes without a
GPU: real engines are built and not run, ONNX Runtime's CUDA provider is a double."""

from __future__ import annotations

import importlib
import json
import re
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from click.testing import CliRunner

from dragoman import runtime
from dragoman.benchmarks import latency
from dragoman.benchmarks.compare.contenders.gpu import engine_sizes, prepare_engines
from dragoman.benchmarks.compare.contenders.text import Workload
from dragoman.benchmarks.compare.task import Run
from dragoman.benchmarks.compare.tasks import floor, greedy
from dragoman.benchmarks.gpu import parity
from dragoman.benchmarks.models import shapes
from dragoman.benchmarks.models.bundles import bundle_with_engines
from dragoman.benchmarks.models.random_checkpoint import (
    write_random_checkpoint,
    write_random_text_model,
)
from dragoman.reference_model import load_checkpoint
from dragoman.reference_model.pretrained import find_checkpoint
from dragoman.runtime import BackendError, Model, read_bundle
from dragoman.runtime.backends.tensorrt.packages import MODULES
from dragoman.runtime.format.manifest import Profile, Range, TensorRTEngines

from ..device_double import DoubleDevice
from ..provider_double import opened
from .doubles import compared

transformers: Any = importlib.import_module("transformers")

CLIPS = Path(__file__).parents[1] / "real" / "clips"
SMALL_WHISPER = shapes.WHISPER_TINY_EN | shapes.stacks(16, 1, 2, 24)
"""Vocabulary, mel bins and positions are those of the real one."""

SUMMARIES = Workload((3,), 9, 4, (1, 199), (1,), 1, longest_source=21)


def test_sources_of_several_lengths() -> None:
    batch = SUMMARIES.batch(50)
    assert {len(source) for source in batch.sources} == set(range(9, 22))
    assert (batch.new_tokens, batch.num_beams) == (4, 1)
    assert SUMMARIES.batch(50) == batch


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bart") / "checkpoint"
    write_random_text_model("bart-tiny", directory, vocab_size=200)
    return directory


@pytest.mark.engines
def test_engines_of_the_shape_of_bart(bart: Path, tmp_path: Path) -> None:
    """In bf16, for the sizes of the workload: as the part builds them on the GPU machine."""
    directory = prepare_engines(
        bart,
        tmp_path / "engines",
        target="tensorrt-rtx",
        precision="bf16",
        sizes=engine_sizes(SUMMARIES),
    )
    manifest = read_bundle(directory).manifest
    engines = manifest.executable
    assert isinstance(engines, TensorRTEngines)
    assert (manifest.precision, engines.capacity) == ("bf16", 4)
    source = Range(1, 15, 32)
    assert engines.profiles == (Profile(Range(1, 3, 4), source),)
    assert engines.reports["decoder"].fused


def test_a_package_that_is_missing_costs_no_time(
    bart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODULES, "tensorrt", "no_such_module")
    with pytest.raises(BackendError, match="the package tensorrt cannot be imported"):
        bundle_with_engines(
            bart,
            tmp_path / "engines",
            target="tensorrt",
            precision="bf16",
            **engine_sizes(SUMMARIES)._asdict(),
        )
    assert not list(tmp_path.iterdir())


def test_the_shape_of_bart_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What contenders are given, and the record."""
    given: dict[str, Any] = {}

    def measure(run: Run, contenders: Any, workload: Workload, checkpoint: Path) -> dict[str, Any]:
        given.update(json.loads((checkpoint / "config.json").read_text()), workload=workload)
        names = [contender.name for contender in contenders if contender.timed]
        figures = {"ms_per_step": (1.0, 1.0, 1.0), "tokens_per_second": 9.0}
        peers = dict.fromkeys(("best_peer", "ratio", "best_fp32_peer", "fp32_ratio"))
        case = {"threads": 2, "batch_size": 3, "identical": 3}
        rows = [{"contender": name} | case | figures | peers for name in names]
        return {"measurements": rows, "costs": [], "footprints": [], "failures": []}

    monkeypatch.setattr(greedy, "measure_decoding", measure)
    for name, small in (("READ_MB", 1), ("WIDTH", 64), ("REPETITIONS", 1)):
        monkeypatch.setattr(floor, name, small)
    options = "greedy --shape bart-tiny --batch-size 3 --rounds 1 --no-quality --threads 2"
    options += " --source-length 9 --longest-source 21 --new-tokens 4"
    output = compared(*options.split(), "--only", "Dragoman fp32", "--output", tmp_path)
    assert "source 9 to 21, 4 new tokens" in " ".join(output.split())
    assert (given["model_type"], given["vocab_size"]) == ("bart", 264)
    expected = Workload((3,), 9, 4, (1, 263), (1,), 1, longest_source=21)
    assert given["workload"].batch(3).sources == expected.batch(3).sources
    record = json.loads((tmp_path / "cpu-bart-tiny-2-threads.json").read_text())
    assert record["shape"] == "BART bart-tiny, vocabulary 264, random weights"
    assert (record["source_length"], record["longest_source"]) == (9, 21)
    assert [m["contender"] for m in record["measurements"]] == ["Dragoman fp32"]


def test_random_whisper_is_one_of_theirs(tmp_path: Path) -> None:
    generation = shapes.WHISPER_GENERATION
    write_random_checkpoint(SMALL_WHISPER, tmp_path, seed=1, generation=generation)
    _, info = transformers.WhisperForConditionalGeneration.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]


@pytest.fixture
def without_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models, one precision, and the double in place of ONNX Runtime's provider."""

    def load(
        directory: Path,
        *,
        backend: str | None,
        device: str | None = None,
        threads: int | None = None,
        check: Literal["once", "always", "never"] = "once",
        allow_fallback: bool = False,
    ) -> Model:
        if backend == "onnxruntime-cuda":
            return opened(read_bundle(directory), DoubleDevice())
        return runtime.load(directory, backend=backend, device=device, threads=threads, check=check)

    monkeypatch.setattr(parity, "load", load)
    monkeypatch.setattr(latency, "load", load)
    monkeypatch.setattr("dragoman.benchmarks.gpu.device.Device", DoubleDevice)
    monkeypatch.setattr("dragoman.benchmarks.bandwidth.BYTES", 1 << 12)
    monkeypatch.setattr(parity, "PRECISIONS", ("fp16",))
    monkeypatch.setattr(parity, "WORDS", 5)
    monkeypatch.setattr(parity, "PROMPTS", 3)
    monkeypatch.setattr(parity, "WINDOWS", 2)
    monkeypatch.setattr(shapes, "WHISPER_TINY_EN", SMALL_WHISPER)
    monkeypatch.setenv("DRAGOMAN_REAL", str(tmp_path / "real"))


def checked(name: str, output: Path) -> dict[str, Any]:
    backends = [word for each in parity.BACKENDS for word in ("--backend", each)]
    command = ["--model", name, "--output", str(output), *backends]
    result = CliRunner().invoke(parity.main, command)
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads((output / f"parity-{name}.json").read_text())
    return report


@pytest.mark.usefixtures("without_gpu")
def test_parity_of_the_shipped_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def no_engines(neutral: Path, directory: Path, **options: Any) -> Path:
        asked.setdefault(options.pop("target"), options)
        raise BackendError("found no GPU")

    monkeypatch.setattr(parity, "bundle_with_engines", no_engines)
    report = checked("g2p-en", tmp_path)
    assert report["model"] == "g2p-en"
    provider, engines, tensorrt = report["rows"]
    assert provider["backend"] == "onnxruntime-cuda"
    assert (provider["passed"], provider["tokens"], provider["error"]) == (True, "5 of 5", "")
    assert re.fullmatch(r"[\d.]+ ms/step, [\d,]+/s, \d+%", provider["batch 8"])
    assert provider["captured"] > 0
    assert provider["taken_mb"] >= provider["left_mb"]
    assert engines["error"] == "found no GPU"
    assert tensorrt["error"] == engines["error"]
    assert engines.keys() == provider.keys() == tensorrt.keys()
    sizes = {
        "precision": "fp16",
        "batches": (Range(1, 1, 1), Range(1, 8, 8)),
        "source": Range(1, 32, 64),
        "capacity": 64,
    }
    assert asked == {"tensorrt-rtx": sizes, "tensorrt": sizes}


@pytest.mark.engines
@pytest.mark.usefixtures("without_gpu")
def test_parity_of_a_decoder_only_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its engines have room for prompts; here they are built and not run."""
    monkeypatch.delitem(parity.BACKENDS, "tensorrt")
    built: list[TensorRTEngines] = []

    def with_engines(neutral: Path, directory: Path, **options: Any) -> Path:
        made = bundle_with_engines(neutral, directory, **options)
        engines = read_bundle(made).manifest.executable
        assert isinstance(engines, TensorRTEngines)
        built.append(engines)
        raise BackendError("found no GPU")

    monkeypatch.setattr(parity, "bundle_with_engines", with_engines)
    report = checked("verses-en", tmp_path)
    assert report["model"] == "verses-en"
    provider, engines = report["rows"]
    assert engines["error"] == "found no GPU"
    assert (provider["passed"], provider["tokens"], provider["error"]) == (True, "3 of 3", "")
    assert provider["batch 8"]
    (found,) = built
    config = load_checkpoint(find_checkpoint("verses-en")).config
    assert found.capacity == config.max_target_positions
    assert {profile.source for profile in found.profiles} == {Range(1, 1, 1)}


@pytest.mark.engines
@pytest.mark.usefixtures("without_gpu")
def test_parity_of_whisper_without_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tensorrt", "tensorrt-rtx"):
        monkeypatch.delitem(parity.BACKENDS, name)
    report = checked("whisper-tiny.en", tmp_path)
    assert report["model"] == "random weights in the shape of Whisper tiny.en"
    assert report["inputs"] == "2 windows of random sound (seed 0)"
    (row,) = report["rows"]
    assert (row["passed"], row["tokens"], row["error"]) == (True, "2 of 2", "")
    assert row["batch 8"]


@pytest.mark.usefixtures("without_gpu")
def test_whisper_that_was_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights next to clips; a file that is not the expected one is refused."""
    real = tmp_path / "real"
    write = partial(write_random_checkpoint, SMALL_WHISPER, seed=1)
    write(real / "whisper-tiny.en", generation=shapes.WHISPER_GENERATION)
    monkeypatch.setattr(parity, "downloaded_whisper", lambda size: real / f"whisper-{size}")
    (tmp_path / "clips").mkdir()
    clip = next(CLIPS.glob("cards*.flac"))
    (tmp_path / "clips" / clip.name).write_bytes(clip.read_bytes())
    monkeypatch.setattr(parity, "CLIPS", tmp_path / "clips")
    subject = parity.SUBJECTS["whisper-tiny.en"](tmp_path, False)
    assert subject.description == "Whisper tiny.en"
    assert subject.inputs.description == "clips, 1 files, 1 windows"
    monkeypatch.undo()
    monkeypatch.setenv("DRAGOMAN_REAL", str(real))
    (real / "whisper-tiny.en" / "model.bin").write_bytes(b"")
    with pytest.raises(Exception, match=r"model\.bin: expected SHA-256 1a5afae0"):
        parity.whisper_tiny_en(tmp_path, False)
