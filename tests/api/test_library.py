"""`dragoman.api`: what the command line does, as functions."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman import DragomanError, api
from dragoman.reference_model import ModelConfig, save_checkpoint
from dragoman.runtime import Bundle, load, read_bundle
from dragoman.runtime.format.parity import Parity
from dragoman.verification.tolerances import TOLERANCES

from ..random_weights import random_transformer
from ..recorded_progress import RecordedProgress


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of 12, two layers of decoder, untied: no tokenizers."""
    config = ModelConfig(
        source_vocab_size=29,
        target_vocab_size=31,
        encoder_layers=1,
        decoder_layers=2,
        d_model=36,
        num_heads=3,
        d_ff=40,
        tie_target_output=False,
        max_source_positions=17,
        max_target_positions=13,
        dropout=0.0,
    )
    directory = tmp_path_factory.mktemp("checkpoints") / "small"
    save_checkpoint(random_transformer(config, seed=3), directory)
    return directory


@pytest.fixture(scope="module")
def neutral(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return api.export(checkpoint, tmp_path_factory.mktemp("bundles") / "neutral").directory


def test_export_returns_the_bundle_it_wrote(checkpoint: Path, tmp_path: Path) -> None:
    progress = RecordedProgress()
    bundle = api.export(checkpoint, tmp_path / "out", progress=progress)
    assert bundle.directory == tmp_path / "out"
    assert bundle.manifest == read_bundle(tmp_path / "out").manifest
    assert (bundle.manifest.target, bundle.manifest.precision) == ("neutral", "fp32")
    assert progress.stages[:2] == ["reading the checkpoint", "exporting the encoder"]
    with pytest.raises(DragomanError, match="already exists"):
        api.export(checkpoint, tmp_path / "out")
    assert api.export(checkpoint, tmp_path / "out", overwrite=True).manifest == bundle.manifest


def test_optimize_returns_what_passes_did(neutral: Path, tmp_path: Path) -> None:
    optimized = api.optimize(neutral, tmp_path / "int8", precision="int8")
    assert optimized.bundle.manifest == read_bundle(tmp_path / "int8").manifest
    assert optimized.warnings == ()
    attention = [p for p in optimized.bundle.manifest.passes if p.name == "attention"]
    assert [(p.graph, p.matches) for p in attention] == [("encoder", 1), ("decoder", 2)]


def test_a_lone_graph_is_optimized(neutral: Path, tmp_path: Path) -> None:
    records = api.optimize_onnx(neutral / "encoder.onnx", tmp_path / "fused.onnx", target="cpu")
    assert (tmp_path / "fused.onnx").is_file()
    assert sum(r.matches for r in records if r.name == "attention") == 1
    with pytest.raises(DragomanError, match="needs a bundle"):
        api.optimize_onnx(neutral / "encoder.onnx", tmp_path / "x", target="tensorrt-rtx")


def test_build_verifies(checkpoint: Path, tmp_path: Path) -> None:
    progress = RecordedProgress()
    built = api.build(checkpoint, tmp_path / "out", limit=7, threads=1, progress=progress)
    assert built.parity.passed and built.parity.tokens.sequences == 7
    assert built.bundle.manifest == read_bundle(tmp_path / "out").manifest
    assert built.bundle.manifest.parity == built.parity
    assert "verifying" in progress.stages
    assert progress.done[-1] == (7, 7)
    assert load(tmp_path / "out").generate([[3, 4, 5]])[0].error is None
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_build_that_fails_parity_raises_and_leaves_nothing(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TOLERANCES, "fp32", 0.0)
    with pytest.raises(api.ParityFailedError) as caught:
        api.build(checkpoint, tmp_path / "out", limit=3, threads=1)
    assert not caught.value.parity.passed and caught.value.kept is None
    assert caught.value.passes
    assert "the first tensor to differ by more than 0: " in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(api.ParityFailedError) as caught:
        api.build(checkpoint, tmp_path / "out", limit=3, threads=1, keep_failed=True)
    assert caught.value.kept is not None
    kept = read_bundle(tmp_path / "out").manifest
    assert kept.parity is not None and not kept.parity.passed


def test_verify_compares_and_records(
    checkpoint: Path, neutral: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.export(checkpoint, tmp_path / "out")
    without = api.verify(tmp_path / "out", checkpoint, limit=5, threads=1)
    assert without.passed and without.problem is None
    assert read_bundle(tmp_path / "out").manifest.parity is None  # only some inputs
    recorded = api.verify(tmp_path / "out", checkpoint, limit=5, threads=1, record=True)
    assert read_bundle(tmp_path / "out").manifest.parity == recorded.parity
    monkeypatch.setitem(TOLERANCES, "fp32", 0.0)
    failed = api.verify(tmp_path / "out", checkpoint, limit=5, threads=1)
    assert not failed.passed and failed.problem is not None
    assert failed.problem.startswith("parity failed: cross_key_0 differs by")


def test_a_bundle_of_another_model_is_not_compared(neutral: Path) -> None:
    with pytest.raises(DragomanError, match="not made from a model like g2p-en"):
        api.verify(neutral, "g2p-en", limit=1)


def test_a_manifest_records_what_the_functions_return(neutral: Path) -> None:
    data = json.loads((neutral / "manifest.json").read_text(encoding="utf-8"))
    assert data["schema_version"] == 1 and data["kind"] == "sequence-to-sequence"
    assert set(data["graphs"]) == {"encoder", "decoder", "candidates"}
    assert data["executable"] == {"format": "onnx"}


WRONG: dict[str, tuple[Callable[..., object], dict[str, Any], str]] = {
    "build, precision": (api.build, {"precision": "fp8"}, "precision: expected one of fp32, "),
    "build, target": (api.build, {"target": "moon"}, "unknown target 'moon'"),
    "build, inputs": (api.build, {"inputs": "none.txt"}, "found nothing at none.txt"),
    "build, calibration": (
        api.build,
        {"calibration": "none.txt", "precision": "int8"},
        "found nothing at none.txt",
    ),
    "build, calibration at fp32": (api.build, {"calibration": "x"}, "expected none at fp32"),
    "build, limit": (api.build, {"limit": 0}, "limit: expected at least 1 input, found 0"),
    "build, threads": (api.build, {"threads": 0}, "threads: expected 1 to "),
    "build, half a thread": (api.build, {"threads": 2.5}, "threads: expected 1 to "),
    "build, too many threads": (api.build, {"threads": 10**6}, "found 1000000"),
    "build, refit": (api.build, {"refit": "none"}, "expected a bundle"),
    "build, capacity": (
        api.build,
        {"target": "tensorrt-rtx", "engines": api.EngineRequest(capacity=0)},
        "capacity: expected at least 1, found 0",
    ),
    "build, engines": (api.build, {"engines": api.EngineRequest()}, "builds no engines"),
    "optimize, precision": (api.optimize, {"precision": "fp8"}, "precision: expected one of"),
    "optimize, calibration": (
        api.optimize,
        {"calibration": "none.txt", "precision": "int8"},
        "found nothing at none.txt",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(neutral: Path, checkpoint: Path, tmp_path: Path, name: str) -> None:
    function, arguments, message = WRONG[name]
    source = neutral if function is api.optimize else checkpoint
    with pytest.raises(DragomanError, match=re.escape(message)):
        function(str(source), str(tmp_path / "out"), **arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [{"limit": -1}, {"threads": 0}, {"inputs": "none.txt"}, {"backend": "moon"}]
)
def test_wrong_arguments_of_verify(
    neutral: Path, checkpoint: Path, arguments: dict[str, Any]
) -> None:
    with pytest.raises(DragomanError, match=r"expected .*, found|found nothing|expected one of"):
        api.verify(neutral, checkpoint, **arguments)


def test_the_source_is_not_replaced_by_its_result(neutral: Path) -> None:
    with pytest.raises(DragomanError, match="is the source itself"):
        api.optimize(neutral, neutral, precision="int8", overwrite=True)
    assert read_bundle(neutral).manifest.precision == "fp32"


def test_verifying_changes_nothing_else_in_the_manifest(
    checkpoint: Path, neutral: Path, tmp_path: Path
) -> None:
    old = tmp_path / "old"
    shutil.copytree(neutral, old)
    data = json.loads((old / "manifest.json").read_text(encoding="utf-8"))
    del data["graphs"]["candidates"]
    (old / "manifest.json").write_text(json.dumps(data), encoding="utf-8")
    verified = api.verify(old, checkpoint, limit=3, threads=1, record=True)
    written = json.loads((old / "manifest.json").read_text(encoding="utf-8"))
    assert written.pop("parity")["passed"]
    assert written == {name: value for name, value in data.items() if name != "parity"}
    assert read_bundle(old).manifest.parity == verified.parity


def test_figures_are_known_before_the_bundle_is_finished(checkpoint: Path, tmp_path: Path) -> None:
    known: list[Parity] = []

    def compared(graphs: Bundle, parity: Parity) -> None:
        assert not (tmp_path / "out").exists() and graphs.manifest.passes
        known.append(parity)

    built = api.build(checkpoint, tmp_path / "out", limit=3, threads=1, compared=compared)
    assert known == [built.parity]


def test_the_page_of_the_library_has_every_name() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "library.md"
    lines = page.read_text(encoding="utf-8").splitlines()
    assert {line.rpartition(".")[2] for line in lines if line.startswith(":::")} == {*api.__all__}
