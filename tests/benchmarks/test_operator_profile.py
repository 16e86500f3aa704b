"""Operator profiles: times are added up by operator, and a bundle can be profiled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from docs.tools.operator_profile import OperatorTime, main, operator_times
from dragoman.export import export_bundle
from dragoman.onnx_graphs.shortlist_graphs import add_shortlist
from dragoman.reference_model import HeadConfig, Transformer, make_model, preset
from dragoman.runtime.format.writing import write_manifest
from dragoman.runtime.texts.shortlist import Shortlist


def test_times_are_added_up_by_operator(tmp_path: Path) -> None:
    def event(name: str, operator: str, microseconds: int, category: str = "Node") -> object:
        return {"cat": category, "name": name, "dur": microseconds, "args": {"op_name": operator}}

    file = tmp_path / "profile.json"
    events = [
        event("a_kernel_time", "MatMul", 3000),
        event("b_kernel_time", "Add", 500),
        event("a_kernel_time", "MatMul", 5000),
        event("b_kernel_time", "Add", 1500),
        event("a_fence_before", "MatMul", 7),
        event("c_kernel_time", "MatMul", 4000),
        event("d_kernel_time", "MatMul", 0),
        event("model_run", "MatMul", 99999, "Session"),
    ]
    file.write_text(json.dumps(events), encoding="utf-8")
    assert operator_times(file, 2) == [OperatorTime("MatMul", 2, 6.0), OperatorTime("Add", 1, 1.0)]
    assert not file.exists()


def test_a_bundle_is_profiled(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Transformer(preset("tiny", source_vocab_size=40, target_vocab_size=50)).eval()
    export_bundle(model, tmp_path, name="tiny")
    outcome = CliRunner().invoke(main, [str(tmp_path), "--batch-size", "3", "--steps", "4"])
    assert outcome.exit_code == 0, outcome.output
    for text in (
        "decoder step, batch 3, 1 threads",
        "encoder, batch 3",
        "MatMul",
        "matrix products",
    ):
        assert text in " ".join(outcome.output.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "candidates.onnx",
        "decoder.onnx",
        "encoder.onnx",
        "manifest.json",
        "weights.bin",
    ]


def test_a_shortlist_is_profiled(tmp_path: Path) -> None:
    """With the graphs that take the place of the decoder."""
    torch.manual_seed(0)
    model = Transformer(preset("tiny", source_vocab_size=40, target_vocab_size=50)).eval()
    exported = export_bundle(model, tmp_path, name="tiny")
    shortlist = Shortlist({(5,): np.array([7, 9], np.int32)}, np.arange(4, dtype=np.int32))
    write_manifest(add_shortlist(exported, shortlist).manifest, tmp_path)
    outcome = CliRunner().invoke(main, [str(tmp_path), "--steps", "4"])
    assert outcome.exit_code == 0, outcome.output
    titles = [line for line in outcome.output.splitlines() if "batch 1" in line]
    assert [title.split(",")[0] for title in titles] == [
        "encoder",
        "decoder step",
        "shortlist_weights",
    ]


ALONE: dict[str, dict[str, Any]] = {
    "encoder": {
        "target_vocab_size": 0,
        "decoder_layers": 0,
        "max_target_positions": 0,
        "head": HeadConfig(task="embedding"),
    },
    "decoder step": {"source_vocab_size": 0, "encoder_layers": 0, "max_source_positions": 0},
}


@pytest.mark.parametrize("graph", ALONE)
def test_a_stack_alone_is_profiled(graph: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = preset("tiny", source_vocab_size=40, target_vocab_size=50).replace(**ALONE[graph])
    export_bundle(make_model(config).eval(), tmp_path, name="tiny")
    outcome = CliRunner().invoke(main, [str(tmp_path), "--batch-size", "3", "--steps", "4"])
    assert outcome.exit_code == 0, outcome.output
    titles = [line for line in outcome.output.splitlines() if "batch 3" in line]
    assert len(titles) == 1 and titles[0].startswith(f"{graph}, batch 3, 1 threads")
