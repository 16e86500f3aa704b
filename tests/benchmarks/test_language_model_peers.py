"""Every peer continues prompts as asked: those in fp32 as Hugging Face does, all of them by exactly
as many tokens."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dragoman.benchmarks.harness import HERE, Interpreter, rounds
from dragoman.benchmarks.language_model.checkpoint import write_random_language_model
from dragoman.benchmarks.language_model.contenders import contenders
from dragoman.benchmarks.text.measuring import measure
from dragoman.benchmarks.text.workload import Workload

pytestmark = pytest.mark.peers

OPENVINO_PYTHON = os.environ.get("DRAGOMAN_OPENVINO_PYTHON")
"""The environment of `peers-openvino`, which `make test-peers` sets up."""


def test_language_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "SETTLE_SECONDS", 0.0)
    openvino = Interpreter.of_environment(Path(OPENVINO_PYTHON)) if OPENVINO_PYTHON else HERE
    write_random_language_model("tiny", tmp_path / "checkpoint")
    everyone = contenders(openvino_in=openvino)
    selected = {c.name for c in everyone if c.timed}
    if OPENVINO_PYTHON is None:
        selected = {name for name in selected if not name.startswith("OpenVINO")}
    figures = measure(
        everyone,
        selected,
        Workload((1, 3), 7, 9, (0, 199), (1,), 1),
        checkpoint=tmp_path / "checkpoint",
        directory=tmp_path,
    )
    assert not figures.failures
    assert {m.contender for m in figures.measurements} == selected
    assert not [m.contender for m in figures.measurements if m.fp32 and m.identical < m.batch_size]
