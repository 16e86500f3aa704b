"""Every peer continues prompts as asked: those in fp32 as Hugging Face does, all of them by exactly
as many tokens."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dragoman.benchmarks.compare import rounds
from dragoman.benchmarks.compare.task import Run
from dragoman.benchmarks.compare.tasks.decoding import Workload, measure_decoding
from dragoman.benchmarks.compare.tasks.text_contenders import language_models
from dragoman.benchmarks.models.random_checkpoint import write_random_language_model
from dragoman.benchmarks.processes import HERE, Interpreter

pytestmark = pytest.mark.peers

OPENVINO_PYTHON = os.environ.get("DRAGOMAN_OPENVINO_PYTHON")
"""The environment of `peers-openvino`, which `make test-peers` sets up."""


def test_language_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "SETTLE_SECONDS", 0.0)
    openvino = Interpreter.of_environment(Path(OPENVINO_PYTHON)) if OPENVINO_PYTHON else HERE
    write_random_language_model("tiny", tmp_path / "checkpoint")
    everyone = language_models(openvino_in=openvino)
    selected = {c.name for c in everyone if c.timed}
    if OPENVINO_PYTHON is None:
        selected = {name for name in selected if not name.startswith("OpenVINO")}
    figures = measure_decoding(
        Run(tmp_path, only=sorted(selected)),
        everyone,
        Workload((1, 3), 7, 9, (0, 199), (1,), 1),
        tmp_path / "checkpoint",
    )
    assert not figures["failures"]
    measurements = figures["measurements"]
    assert {m.contender for m in measurements} == selected
    assert not [m.contender for m in measurements if m.fp32 and m.identical < m.batch_size]
