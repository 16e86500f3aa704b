from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from dragoman.optimize.compare import difference, run
from dragoman.optimize.samples import samples_for_graph
from dragoman.optimize.tensorrt.engine_bundle import pinned_bundle
from dragoman.runtime import Bundle

from ..conftest import Optimize


def test_a_pinned_decoder_computes_the_same(neutral: Bundle, tmp_path: Path) -> None:
    pinned = pinned_bundle(neutral, tmp_path, capacity=11)
    samples = samples_for_graph(pinned.manifest.graphs["decoder"], neutral.manifest.model, seed=3)
    before, after = (
        run(ir.load(b.path(b.manifest.graphs["decoder"].file)), samples) for b in (neutral, pinned)
    )
    assert before.keys() == after.keys()
    assert difference(before, after)[1] < 1e-6


def test_only_rows_and_sources_stay_dynamic(neutral: Bundle, tmp_path: Path) -> None:
    pinned = pinned_bundle(neutral, tmp_path, capacity=11)
    decoder = ir.load(pinned.path(pinned.manifest.graphs["decoder"].file))
    open_axes = {
        str(d.value)
        for value in (*decoder.graph.inputs, *decoder.graph.outputs)
        for d in value.shape or ()
        if not isinstance(d, int)
    }
    assert open_axes == {"batch", "source_batch", "source"}


def test_pinning_removes_nodes(neutral: Bundle, optimize: Optimize, tmp_path: Path) -> None:
    pinned = pinned_bundle(optimize(neutral, "fp16", "tensorrt-rtx"), tmp_path, capacity=11)
    record = pinned.manifest.passes[-1]
    assert (record.name, record.graph) == ("pin-shapes", "decoder")
    assert record.nodes_after < record.nodes_before
    assert record.difference == 0.0
