"""`dragoman build --target tensorrt-rtx` and what the other commands say of such a bundle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.runtime import read_bundle
from dragoman.runtime.format.manifest import TensorRTEngines

from .conftest import Outcome
from .test_missing_libraries import hiding

Run = Callable[..., Outcome]
Spawn = Callable[..., Outcome]


@pytest.fixture(scope="module")
def engines(
    build_here: Spawn, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Outcome]:
    output = tmp_path_factory.mktemp("engines") / "bundle"
    outcome = build_here(
        *("build", checkpoint, "-o", output, "--target", "tensorrt-rtx", "--precision", "fp16"),
        *("--profile", "latency", "--profile", "1..3..5", "--source-length", "1..16", "--limit", 3),
        *("--compute-capability", "8.9,12.0"),
    )
    assert outcome.returncode == 0, outcome.stderr
    return output, outcome


def test_build_reports_profiles_and_gpus(engines: tuple[Path, Outcome]) -> None:
    output, outcome = engines
    printed = " ".join(outcome.stdout.split())
    assert "parity passed before its engines were built" in printed
    assert "profile 0: batch 1, source 1 to 16 (best 16), at most 24 new tokens" in printed
    assert "profile 1: batch 1 to 5 (best 3)" in printed
    assert "run on 8.9: Ada (GeForce RTX 40, L4, L40); 12.0: Blackwell" in printed
    assert "fused in" in printed
    assert "engines not run: engines of tensorrt-rtx need an NVIDIA GPU (found no" in printed
    assert printed.endswith(f"Next: dragoman verify {output}, on the GPU of its engines")
    manifest = read_bundle(output).manifest
    assert isinstance(manifest.executable, TensorRTEngines) and manifest.parity is not None
    assert manifest.parity.passed
    assert manifest.parity.backend == "onnxruntime, float16 emulated in float32"
    assert manifest.executable.compute_capabilities == ("8.9", "12.0")
    assert manifest.executable.parity is None
    assert not list(output.parent.glob(".*"))


def test_run_says_that_a_gpu_is_needed(spawn: Spawn, engines: tuple[Path, Outcome]) -> None:
    output, _ = engines
    outcome = spawn("run", output, "word")
    assert outcome.returncode == 2
    (line,) = outcome.stderr.splitlines()
    assert line.startswith(f"Error: {output}: engines of tensorrt-rtx need an NVIDIA GPU")
    assert line.endswith("run it on a machine with one, or build a bundle for target cpu")


def test_verify_says_that_the_engines_were_not_run(
    dragoman: Run, engines: tuple[Path, Outcome]
) -> None:
    output, _ = engines
    outcome = dragoman("verify", output)
    assert (outcome.returncode, outcome.stdout) == (2, "")
    (line,) = outcome.stderr.splitlines()
    assert line.startswith(f"Error: engines not run: {output}: engines of tensorrt-rtx need")


def test_inspect_reports_what_can_be_known(dragoman: Run, engines: tuple[Path, Outcome]) -> None:
    output, _ = engines
    outcome = dragoman("inspect", output)
    assert outcome.returncode == 0
    for known in (
        "engines of tensorrt-rtx",
        "bytes of float16",
        "kv_cache_update",
        "_gem",
        "known only on a GPU",
        "at most 24 new tokens",
        "8.9, 12.0",
        "engines not run: their outputs were not compared",
    ):
        assert known in outcome.stdout


def test_optimize_builds_engines_of_a_neutral_bundle(
    dragoman: Run, checkpoint: Path, tmp_path: Path
) -> None:
    neutral, output = tmp_path / "neutral", tmp_path / "engines"
    assert dragoman("export", checkpoint, "-o", neutral).returncode == 0
    outcome = dragoman(
        *("optimize", neutral, "-o", output, "--target", "tensorrt-rtx", "--precision", "int8"),
        *("--profile", "throughput", "--capacity", 7),
    )
    assert outcome.returncode == 0, outcome.stderr
    manifest = read_bundle(output).manifest
    assert isinstance(manifest.executable, TensorRTEngines) and manifest.parity is None
    assert manifest.executable.capacity == 7
    assert manifest.executable.profiles[0].batch.largest == 32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--profile", "8"],
            "--profile is for engines: expected --target tensorrt-rtx",
        ),
        (["--target", "neutral", "--capacity", "8"], "--capacity is for engines"),
        (["--target", "tensorrt-rtx", "--profile", "many"], "expected a size or a range"),
        (["--target", "tensorrt-rtx", "--profile", "4..2"], "profile 0, batch: expected 1 <="),
        (["--target", "tensorrt-rtx", "--source-length", "1..99"], "expected at most 32"),
        (["--target", "tensorrt-rtx", "--capacity", "99"], "capacity: expected 1 to 24"),
        (["--target", "tensorrt-rtx", "--compute-capability", "9.0"], "builds for 7.5, 8.0"),
        (["--target", "tensorrt-rtx", "--compute-capability", "7.5"], "expected precision fp16"),
        (["--target", "tensorrt"], "pip install 'dragoman[tensorrt]'"),
    ],
)
def test_a_mistake_is_one_line(
    dragoman: Run, checkpoint: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    outcome = dragoman("build", checkpoint, "-o", tmp_path / "out", *options)
    assert outcome.returncode == 2
    lines = outcome.stderr.splitlines()
    assert lines[-1].startswith("Error: ") and message in lines[-1]
    assert list(tmp_path.iterdir()) == []


def test_without_the_package_build_fails_at_once(
    spawn: Spawn, checkpoint: Path, tmp_path: Path
) -> None:
    outcome = spawn(
        *("build", checkpoint, "-o", tmp_path / "out", "--target", "tensorrt-rtx"),
        prelude=hiding("tensorrt_rtx"),
    )
    assert outcome.returncode == 2
    (line,) = outcome.stderr.splitlines()
    assert "pip install 'dragoman[tensorrt-rtx]'" in line
    assert list(tmp_path.iterdir()) == []


def test_engines_are_not_refitted_with_another_architecture(
    dragoman: Run, engines: tuple[Path, Outcome], checkpoint: Path, tmp_path: Path
) -> None:
    output, _ = engines
    outcome = dragoman("build", checkpoint, "-o", tmp_path / "new", "--refit", output, "--limit", 2)
    assert outcome.returncode == 2
    assert "cannot be refitted" in outcome.stderr.splitlines()[-1]
    assert not (tmp_path / "new").exists()
