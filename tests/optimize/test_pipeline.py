"""Passes in order: each is checked against its requirements and its tolerance."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnxscript.rewriter import RewriteRule

from dragoman.export import export_bundle
from dragoman.export.families.hugging_face import load_hugging_face
from dragoman.optimize import pipeline, running, target_bundle
from dragoman.optimize.checking.samples import sample_sets
from dragoman.optimize.fusions import CLEANUP, EXPAND_MASKS
from dragoman.optimize.graph_pass import Changes, GraphPass, PassError, RulePass
from dragoman.optimize.pipeline import apply_passes
from dragoman.optimize.running import (
    Samples,
    difference,
    distance,
    only_outputs,
    run,
    with_outputs,
)
from dragoman.optimize.targets import find_target
from dragoman.runtime.format.manifest import PassRecord

from ..speech_models import save, whisper

HEADER = '<ir_version: 10, opset_import: ["" : 23]>'


def doubling() -> ir.Model:
    return ir.from_onnx_text(
        f"{HEADER} g (float[b,3] x) => (float[b,3] y) "
        "{ two = Constant<value_float=2.0>() h = Mul(x, two) y = Neg(h) }"
    )


@dataclass
class Step(GraphPass):
    """Replaces the factor of the product, and counts one match."""

    name: str = "step"
    factor: float = 2.0
    tolerance: float = 1e-3
    requires: frozenset[str] = frozenset()
    ensures: frozenset[str] = frozenset()

    def apply(self, model: ir.Model) -> Changes:
        node = next(node for node in model.graph if node.op_type == "Constant")
        node.attributes["value_float"] = ir.AttrFloat32("value_float", self.factor)
        return Changes(1)


SAMPLES = {"x": np.array([[1, -4, 0.5], [2, 2, 0]], np.float32)}


@pytest.mark.parametrize(("large", "windows"), [(True, 1), (False, 2)])
def test_windows_that_encoders_of_speech_are_compared_on(
    large: bool, windows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_hugging_face(save(whisper(multilingual=False), tmp_path / "checkpoint"))
    (tmp_path / "neutral").mkdir()
    bundle = export_bundle(model, tmp_path / "neutral", name="random")
    compared: dict[str, int] = {}

    def spy(*given: Any, graph: str, samples: Samples, **options: Any) -> list[PassRecord]:
        compared[graph] = len(next(iter(samples.values())))
        return apply_passes(*given, graph=graph, samples=samples, **options)

    monkeypatch.setattr(target_bundle, "is_large", lambda model: large)
    monkeypatch.setattr(target_bundle, "apply_passes", spy)
    target_bundle.fused_graphs(bundle, find_target("cpu"), "fp32", lambda stage: None)
    assert compared["encoder"] == windows


def test_the_difference_is_relative_to_the_largest_value() -> None:
    records = apply_passes(doubling(), [Step(factor=2.001)], graph="g", samples=SAMPLES)
    assert records[0].difference == pytest.approx(0.004 / 8, rel=1e-3)
    assert (records[0].matches, records[0].nodes_before, records[0].nodes_after) == (1, 2, 2)


def test_a_pass_that_changes_too_much_is_named_with_the_output() -> None:
    with pytest.raises(PassError, match=r"g: pass bad, after good: changes output y by 0.5"):
        apply_passes(
            doubling(), [Step("good"), Step("bad", factor=3.0)], graph="g", samples=SAMPLES
        )


def test_passes_of_a_large_graph_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of those that change it has the difference, and what all of them may change."""
    runs: list[None] = []

    def run(self: running.Runner, *given: Any, **options: Any) -> Any:
        runs.append(None)
        return compute(self, *given, **options)

    compute = running.Runner.run
    monkeypatch.setattr(running.Runner, "run", run)
    monkeypatch.setattr(pipeline, "is_large", lambda model: True)
    steps = [Step("first", 2.0008), Step("second", 2.0016)]
    records = apply_passes(doubling(), steps, graph="g", samples=SAMPLES)
    assert len(runs) == 2
    assert [record.difference for record in records] == [None, pytest.approx(8e-4, rel=1e-3)]
    assert [record.tolerance for record in records] == [1e-3, 2e-3]
    records = apply_passes(doubling(), steps, graph="g", samples=None)
    assert [(record.difference, record.tolerance) for record in records] == [(None, 1e-3)] * 2
    steps = [Step("first", 2.0008), Step("third", 2.1)]
    with pytest.raises(
        PassError,
        match=r"g: passes first, third together: changes output y by 0\.05, allowed 0\.002",
    ):
        apply_passes(doubling(), steps, graph="g", samples=SAMPLES)


def test_outputs_that_become_nan_or_infinite_are_named() -> None:
    with pytest.raises(PassError, match="output y becomes NaN or infinite"):
        apply_passes(doubling(), [Step(factor=float("nan"))], graph="g", samples=SAMPLES)


def test_a_pass_requires_properties_that_earlier_ones_ensure() -> None:
    needs = Step("second", requires=frozenset({"tidy"}))
    with pytest.raises(PassError, match="pass second, after first: requires tidy"):
        apply_passes(doubling(), [Step("first"), needs], graph="g", samples=SAMPLES)
    gives = Step("first", ensures=frozenset({"tidy"}))
    assert len(apply_passes(doubling(), [gives, needs], graph="g", samples=SAMPLES)) == 2


def test_without_samples_no_difference_is_recorded() -> None:
    records = apply_passes(doubling(), [Step(factor=9.0)], graph="g", samples=None)
    assert records[0].difference is None


def test_equal_nan_and_infinite_values_are_no_difference() -> None:
    values = {"y": np.array([np.nan, np.inf, 1.0], np.float32)}
    assert difference(values, values) == ("y", 0.0)
    assert difference(values, {"y": np.array([0, np.inf, 1.0], np.float32)})[1] > 1e100


def test_inner_values_can_be_outputs_and_the_model_stays_unchanged() -> None:
    model = doubling()
    outputs = run(with_outputs(model, ["h"]), SAMPLES)
    np.testing.assert_array_equal(outputs["h"], 2 * SAMPLES["x"])
    assert [value.name for value in model.graph.outputs] == ["y"]


def test_what_only_other_values_need_is_not_computed() -> None:
    model = doubling()
    inner = only_outputs(model, ["h"])
    assert [node.op_type for node in inner.graph] == ["Constant", "Mul"]
    outputs = run(inner, SAMPLES)
    assert list(outputs) == ["h"]
    np.testing.assert_array_equal(outputs["h"], 2 * SAMPLES["x"])
    assert [node.op_type for node in model.graph] == ["Constant", "Mul", "Neg"]


def test_values_are_compared_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest value and the largest difference are in other parts."""
    before = np.array([[1, -8, 2], [np.inf, 3, np.nan], [0.5, 1, 1]], np.float32)
    after = before.copy()
    after[2, 1] = 3
    monkeypatch.setattr(running, "NUMBERS_AT_ONCE", 2)
    assert distance(before, after) == 2 / 8
    assert distance(before, before) == 0
    after[1, 2] = 1
    assert distance(before, after) > 1e100
    assert distance(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)) == 0


def test_random_inputs_fit_the_graph() -> None:
    model = ir.from_onnx_text(
        f"{HEADER} g (int64[batch,len] ids, bool[batch,len] mask, float16[batch,4] z) "
        "=> (float16[batch,4] y) { y = Neg(z) }"
    )
    samples = sample_sets(model)[0]
    assert samples["ids"].shape == samples["mask"].shape
    assert samples["ids"].min() >= 0
    assert samples["ids"].max() < 2
    assert [samples[name].dtype.name for name in ("mask", "z")] == ["bool", "float16"]
    assert not samples["mask"].all()


def test_a_graph_that_a_pass_repairs_is_compared_from_then_on() -> None:
    """ONNX Runtime does not accept a mask with one row for several queries."""
    model = ir.from_onnx_text(
        f"{HEADER} g (float[1,2,3,8] q, float[1,2,4,8] k, float[1,1,1,4] m) => (float[1,2,3,8] y) "
        "{ y = Attention(q, k, k, m) }"
    )
    samples = sample_sets(model)[0]
    with pytest.raises(PassError, match="onnxruntime"):
        run(model, samples)
    with pytest.raises(PassError, match="onnxruntime"):
        apply_passes(model, [CLEANUP], graph="g", samples=samples)
    records = apply_passes(
        model,
        [EXPAND_MASKS, CLEANUP],
        graph="g",
        samples=samples,
        properties=frozenset({"opset 23"}),
    )
    assert records[0].matches == 1
    assert [r.difference for r in records] == [None, 0.0]
    q, k, m = (np.asarray(samples[name], np.float64) for name in "qkm")
    scores = np.exp(q @ k.swapaxes(-1, -2) / np.sqrt(8) + m)
    expected = scores / scores.sum(-1, keepdims=True) @ k
    np.testing.assert_allclose(np.asarray(run(model, samples)["y"], float), expected, atol=1e-5)


@pytest.mark.parametrize("found, allowed", [(1, 1e-5), (8, 1.6e-5), (40, 5e-5)])
def test_a_fusion_with_many_matches_has_a_larger_but_limited_tolerance(
    found: int, allowed: float
) -> None:
    nodes = "".join(f"h{i} = Neg(x{i}) x{i + 1} = Neg(h{i}) " for i in range(found))
    model = ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["" : 23]> g (float[2] x0) => (float[2] x{found}) '
        f"{{ {nodes} }}"
    )
    twice = RewriteRule(lambda op, x: op.Neg(op.Neg(x)), lambda op, x: op.Identity(x))
    samples = {"x0": np.ones(2, np.float32)}
    (record,) = apply_passes(
        model, [RulePass("twice", lambda: [twice])], graph="g", samples=samples
    )
    assert record.matches == found
    assert record.tolerance == pytest.approx(allowed)
