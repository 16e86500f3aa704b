"""The comparison by Polygraphy's runners, with ONNX Runtime in the place of TensorRT."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from click.testing import CliRunner

from dragoman.benchmarks.gpu import second_opinion
from dragoman.benchmarks.gpu.second_opinion import compare, graph_runner
from dragoman.benchmarks.models.bundles import optimized_bundle
from dragoman.optimize.step_inputs import record_steps
from dragoman.runtime import read_bundle

from ..small_bundle import small_bundle

POSITIONS = 20


@pytest.fixture(scope="module")
def neutral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_bundle(tmp_path_factory.mktemp("neutral"), POSITIONS)


@pytest.fixture(scope="module")
def half(neutral: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bundles") / "half"
    return optimized_bundle(neutral, directory, target="neutral", precision="fp16")


def test_differences_are_those_of_the_numbers(neutral: Path, half: Path) -> None:
    graphs, checked = read_bundle(neutral), read_bundle(half)
    inputs = record_steps(graphs, checked)
    runners = [graph_runner(bundle.graph_path("decoder")) for bundle in (graphs, checked)]
    rows = compare(runners[0], runners[1], inputs, "decoder", "fp16")
    outputs = [tensor.name for tensor in graphs.manifest.graphs["decoder"].outputs]
    assert [(row["step"], row["output"]) for row in rows] == [
        (step, name) for step in (0, 1, 8, 15) for name in outputs
    ]
    assert all(row["passed"] for row in rows)
    trusted, other = (
        onnxruntime.InferenceSession(bundle.graph_path("decoder")) for bundle in (graphs, checked)
    )
    for row in rows:
        feed = dict(inputs.decoder[row["step"]])
        exact = {k: v.astype(np.float32) if v.dtype == np.float16 else v for k, v in feed.items()}
        (expected,) = trusted.run([row["output"]], exact)
        (found,) = other.run([row["output"]], feed)
        difference = np.abs(expected.astype(np.float64) - found.astype(np.float64)).max()
        assert row["largest absolute"] == pytest.approx(difference, rel=0.01, abs=1e-6)
    assert max(row["largest absolute"] for row in rows) > 1e-5  # there was something to find


def test_a_graph_that_computes_something_else_is_found(neutral: Path, half: Path) -> None:
    """In half precision, where full precision is demanded."""
    runners = [graph_runner(bundle / "encoder.onnx") for bundle in (neutral, half)]
    inputs = record_steps(read_bundle(neutral))
    rows = compare(runners[0], runners[1], inputs, "encoder", "fp32")
    assert [row["output"] for row in rows] == ["cross_key_0", "cross_value_0"]
    assert not any(row["passed"] for row in rows)
    assert all(row["step"] is None and row["difference"] > 1e-4 for row in rows)


def test_the_part_writes_every_precision(
    neutral: Path, half: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def built(*arguments: Any, precision: str, **options: Any) -> Path:
        if precision != "fp16":
            raise ValueError("not\nhere")
        return half

    class Inputs:
        sources = ([3, 4, 5], [6, 7])

    monkeypatch.setattr(second_opinion, "exported", lambda directory: neutral)
    monkeypatch.setattr(second_opinion, "held_out", lambda count: (None, Inputs))
    monkeypatch.setattr(second_opinion, "bundle_with_engines", built)
    monkeypatch.setattr(second_opinion, "engine_runner", graph_runner)
    monkeypatch.setenv("POLYGRAPHY_USE_TENSORRT_RTX", "0")
    outcome = CliRunner().invoke(second_opinion.main, ["--output", str(tmp_path)])
    assert outcome.exit_code == 0, outcome.output
    rows = json.loads((tmp_path / "second_opinion.json").read_text())
    failed = [row for row in rows if "error" in row]
    assert {row["precision"] for row in failed} == {"fp32", "bf16", "int8", "int4"}
    assert failed[0]["error"] == "ValueError: not here"
    compared = [row for row in rows if row["precision"] == "fp16"]
    assert {row["graph"] for row in compared} == {"encoder", "decoder"}
    assert all(row["passed"] for row in compared)


def test_engines_say_which_outputs_share_memory() -> None:
    """Polygraphy's runner asks the engine, and binds such outputs to the input's memory."""
    package: Any = importlib.import_module("tensorrt_rtx")
    assert callable(package.ICudaEngine.get_aliased_input_tensor)
