"""`dragoman bench`: figures as a table and as JSON. That they are good is not tested here."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

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


def test_figures_that_cannot_be_written(dragoman: Dragoman, bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "missing" / "figures.json"
    outcome = dragoman("bench", bundle, *SMALL, "--batch-size", 1, "--json", file)
    assert outcome.returncode == 2
    assert outcome.stderr == f"Error: No such file or directory ({file})\n"
    assert "tokens/s" in outcome.stdout  # measured, and shown
