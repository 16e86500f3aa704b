"""`dragoman.api`: what the command line does, as functions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dragoman import DragomanError, api
from dragoman.benchmarks.parity import TOLERANCES
from dragoman.reference_model import ModelConfig, save_checkpoint
from dragoman.runtime import load, read_bundle

from ..random_weights import random_transformer


class Recorded:
    """A progress callback that remembers."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.advanced: list[tuple[int, int]] = []

    def stage(self, description: str) -> None:
        self.stages.append(description)

    def advance(self, done: int, total: int) -> None:
        self.advanced.append((done, total))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of 12, three layers of decoder, untied: no tokenizers."""
    config = ModelConfig(
        source_vocab_size=29,
        target_vocab_size=31,
        encoder_layers=1,
        decoder_layers=3,
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
    progress = Recorded()
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
    assert [(p.graph, p.matches) for p in attention] == [("encoder", 1), ("decoder", 3)]


def test_a_lone_graph_is_optimized(neutral: Path, tmp_path: Path) -> None:
    records = api.optimize_onnx(neutral / "encoder.onnx", tmp_path / "fused.onnx", target="cpu")
    assert (tmp_path / "fused.onnx").is_file()
    assert sum(r.matches for r in records if r.name == "attention") == 1
    with pytest.raises(DragomanError, match="needs a bundle"):
        api.optimize_onnx(neutral / "encoder.onnx", tmp_path / "x", target="tensorrt-rtx")


def test_build_verifies(checkpoint: Path, tmp_path: Path) -> None:
    progress = Recorded()
    built = api.build(checkpoint, tmp_path / "out", limit=7, threads=1, progress=progress)
    assert built.parity.passed and built.parity.tokens.sequences == 7
    assert built.bundle.manifest == read_bundle(tmp_path / "out").manifest
    assert built.bundle.manifest.parity == built.parity
    assert "verifying" in progress.stages
    assert progress.advanced[-1] == (7, 7)
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
    assert data["schema_version"] == 2 and data["kind"] == "sequence-to-sequence"
    assert set(data["graphs"]) == {"encoder", "decoder"}
    assert data["executable"] == {"format": "onnx"}
