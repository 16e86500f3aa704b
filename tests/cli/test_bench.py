"""`dragoman bench`: figures as a table and as JSON. That they are good is not tested here."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch

from dragoman.export import export_bundle
from dragoman.reference_model import EncoderModel, HeadConfig, LanguageModel, preset

Dragoman = Callable[..., CompletedProcess[str]]

SMALL = ("--source-length", 4, "--new-tokens", 3, "--runs", 2, "--threads", 1)


def test_a_table_and_json(dragoman: Dragoman, bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    sizes = ("--batch-size", 1, "--batch-size", 5)
    outcome = dragoman("bench", bundle, *SMALL, *sizes, "--json", file)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    output = " ".join(outcome.stdout.split())
    for text in ("p50 / p90 / p99", "encoder", "decoder step", "sentence", "tokens/s", "load "):
        assert text in output
    command = f"dragoman bench {bundle} --source-length 4"
    assert command in outcome.stdout

    report = json.loads(file.read_text(encoding="utf-8"))
    assert (report["bundle"], report["precision"]) == ("g2p-en", "fp32")
    assert (report["backend"], report["threads"]) == ("onnxruntime", 1)
    assert (report["source_length"], report["new_tokens"], report["runs"]) == (4, 3, 2)
    assert report["load_seconds"] > 0
    assert report["peak_memory_mb"] > report["bundle_mb"] > 0
    assert report["command"].startswith(command)
    assert report["versions"]["python"] == platform.python_version()
    assert "cores" in report["machine"]
    assert [batch["batch_size"] for batch in report["batches"]] == [1, 5]
    for batch in report["batches"]:
        for what in ("encoder", "step", "sentence"):
            figures = batch[what]
            assert list(figures) == ["p50", "p90", "p99"]
            assert 0 < figures["p50"] <= figures["p90"] <= figures["p99"]
        assert batch["tokens_per_second"] > 0


@pytest.mark.parametrize("option", ["--source-length", "--new-tokens"])
def test_more_than_the_models_positions(dragoman: Dragoman, bundle: Path, option: str) -> None:
    outcome = dragoman("bench", bundle, *SMALL, option, 33)
    assert outcome.returncode == 2
    (line,) = outcome.stderr.splitlines()
    assert line.startswith("Error: ") and "positions" in line and "33" in line


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A bundle of one stack: 20 positions."""

    def make(kind: str) -> Path:
        directory = tmp_path_factory.mktemp(kind)
        torch.manual_seed(0)
        config = preset(
            "tiny",
            source_vocab_size=40,
            target_vocab_size=50,
            max_source_positions=20,
            max_target_positions=20,
        )
        model: EncoderModel | LanguageModel
        if kind == "encoder":
            model = EncoderModel(
                config.replace(
                    target_vocab_size=0,
                    decoder_layers=0,
                    max_target_positions=0,
                    head=HeadConfig(task="embedding"),
                )
            )
        else:
            model = LanguageModel(
                config.replace(source_vocab_size=0, encoder_layers=0, max_source_positions=0)
            )
        export_bundle(model.eval(), directory, name=kind)
        return directory

    return make


def test_an_encoder_alone(dragoman: Dragoman, alone: Callable[[str], Path], tmp_path: Path) -> None:
    bundle, file = alone("encoder"), tmp_path / "figures.json"
    outcome = dragoman("bench", bundle, "--runs", 2, "--batch-size", 3, "--json", file)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert "encoder" in outcome.stdout and "decoder step" not in outcome.stdout
    report = json.loads(file.read_text(encoding="utf-8"))
    assert (report["source_length"], report["new_tokens"]) == (20, 0)  # all that it has
    (batch,) = report["batches"]
    assert batch["step"] is batch["prompt"] is None
    assert 0 < batch["encoder"]["p50"] == batch["sentence"]["p50"]
    assert batch["tokens_per_second"] == pytest.approx(
        3 * 20 / batch["sentence"]["p50"] * 1e3, rel=1e-2
    )
    outcome = dragoman("bench", bundle, "--new-tokens", 3)
    assert outcome.returncode == 2
    assert outcome.stderr == (
        "Error: new tokens: expected none, this model decodes nothing, found 3\n"
    )


def test_a_decoder_alone(dragoman: Dragoman, alone: Callable[[str], Path], tmp_path: Path) -> None:
    bundle, file = alone("decoder"), tmp_path / "figures.json"
    sizes = ("--source-length", 15, "--new-tokens", 5, "--runs", 2, "--batch-size", 3)
    outcome = dragoman("bench", bundle, *sizes, "--json", file)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert "prompt" in outcome.stdout and "encoder" not in outcome.stdout
    report = json.loads(file.read_text(encoding="utf-8"))
    assert (report["source_length"], report["new_tokens"]) == (15, 5)
    (batch,) = report["batches"]
    assert batch["encoder"] is None
    assert batch["prompt"]["p50"] > 0 and batch["step"]["p50"] > 0
    outcome = dragoman("bench", bundle, "--source-length", 15, "--new-tokens", 6)
    assert outcome.returncode == 2
    assert outcome.stderr == (
        "Error: source length: expected at most 14, the positions of this model, found 15\n"
    )


def test_a_directory_for_figures_is_made(dragoman: Dragoman, bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "missing" / "figures.json"
    outcome = dragoman("bench", bundle, *SMALL, "--batch-size", 1, "--json", file)
    assert outcome.returncode == 0 and json.loads(file.read_text())["batches"]
