"""Every peer continues prompts as asked: those in fp32 as Hugging Face does, all of them by exactly
as many tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.benchmarks.compare.contenders.text import Workload, language_models
from dragoman.benchmarks.compare.task import Run
from dragoman.benchmarks.compare.tasks.decoding import measure_decoding
from dragoman.benchmarks.models.random_checkpoint import write_random_language_model

from .doubles import OPENVINO, OPENVINO_PYTHON

pytestmark = pytest.mark.peers


def test_language_models(tmp_path: Path) -> None:
    write_random_language_model("tiny", tmp_path / "checkpoint")
    everyone = language_models(openvino_in=OPENVINO)
    selected = {c.name for c in everyone if c.timed}
    if OPENVINO_PYTHON is None:
        selected = {name for name in selected if not name.startswith("OpenVINO")}
    run = Run(tmp_path, only=sorted(selected))
    figures = measure_decoding(
        run,
        run.chosen(everyone),
        Workload((1, 3), 7, 9, (0, 199), (1,), 1),
        tmp_path / "checkpoint",
    )
    assert not figures["failures"]
    measurements = figures["measurements"]
    assert {m["contender"] for m in measurements} == selected
    assert not [m for m in measurements if m["fp32"] and m["identical"] < m["batch_size"]]
