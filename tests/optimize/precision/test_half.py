"""16 bits: which values are converted, which stay in fp32, and how close results are to fp32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from dragoman import DragomanError
from dragoman.optimize.emulation import emulated_bundle
from dragoman.optimize.graph_pass import PassError
from dragoman.optimize.pipeline import apply_passes
from dragoman.optimize.precision.half import Half, largest_magnitudes
from dragoman.optimize.running import run
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.runtime import BackendError, Bundle, Model, load
from dragoman.runtime.backends import open_backend
from dragoman.runtime.format.manifest import Precision

Optimize = Callable[..., Bundle]
TYPES: dict[Precision, ir.DataType] = {
    "fp16": ir.DataType.FLOAT16,
    "bf16": ir.DataType.BFLOAT16,
}
SOURCES = [[5], [7, 8, 2099], [3] * 20, [9, 1, 4, 1, 5, 9, 2], [6, 6], [8, 3, 5], [2] * 11]


@pytest.fixture(scope="module", params=["fp16", "bf16"])
def halved(request: pytest.FixtureRequest, neutral: Bundle, optimize: Optimize) -> Bundle:
    return optimize(neutral, request.param, target="neutral")


def test_the_manifest_states_the_new_types(halved: Bundle) -> None:
    manifest = halved.manifest
    name = {"fp16": "float16", "bf16": "bfloat16"}[manifest.precision]
    for graph in (manifest.graphs["encoder"], manifest.graphs["decoder"]):
        for spec in (*graph.inputs, *graph.outputs):
            half = spec.layer is not None or spec.role == "logits"
            assert (spec.dtype == name) == half, spec.name
            assert half or spec.dtype in ("int64", "bool", "float32")


def test_the_checker_accepts_both_graphs(halved: Bundle) -> None:
    for graph in (halved.manifest.graphs["encoder"], halved.manifest.graphs["decoder"]):
        onnx.checker.check_model(halved.path(graph.file), full_check=True)


def test_weights_take_half_the_space(halved: Bundle, neutral: Bundle) -> None:
    full, half = (b.path("weights.bin").stat().st_size for b in (neutral, halved))
    assert half == pytest.approx(full / 2, rel=0.01)


def test_only_the_normalizer_of_the_vocabulary_stays_in_fp32(halved: Bundle) -> None:
    model = ir.load(halved.path(halved.manifest.graphs["decoder"].file))
    wide = [node.op_type for node in model.graph if node.outputs[0].dtype == ir.DataType.FLOAT]
    assert sorted(wide) == ["Cast", "GatherElements", "LogSoftmax", "Squeeze"]
    (refusal,) = (r for record in halved.manifest.passes for r in record.refusals)
    assert (refusal.operator, refusal.reason) == ("LogSoftmax", "LogSoftmax is computed in fp32")


def test_fp16_decodes_like_fp32(neutral: Bundle, optimize: Optimize) -> None:
    """Up to the first two tokens whose logits are the same in fp16."""
    halved = load(optimize(neutral, "fp16", target="neutral").directory, threads=1)
    full = load(neutral.directory, threads=1)
    apart = 0
    pairs = zip(SOURCES, halved.generate(SOURCES), full.generate(SOURCES), strict=True)
    for source, found, expected in pairs:
        assert found.log_probability == pytest.approx(expected.log_probability, rel=0.01)
        outputs = zip(found.tokens, expected.tokens, strict=True)
        first = next((n for n, (a, b) in enumerate(outputs) if a != b), None)
        if first is None:
            continue
        apart += 1
        tied = [(source, list(result.tokens[: first + 1])) for result in (found, expected)]
        ours, theirs = (
            [scored.token_log_probabilities[first] for scored in model.score(tied)]
            for model in (halved, full)
        )
        assert ours[0] == ours[1]
        assert theirs[0] == pytest.approx(theirs[1], abs=2**-8)  # of logits from 2 to 4
    assert apart <= 1


def test_onnx_runtime_refuses_bf16_with_a_clear_error(neutral: Bundle, optimize: Optimize) -> None:
    with pytest.raises(BackendError, match="bfloat16 cannot run on ONNX Runtime"):
        load(optimize(neutral, "bf16", target="neutral").directory)


def test_the_emulation_of_bf16_is_what_the_reference_evaluator_computes(
    neutral: Bundle, optimize: Optimize, tmp_path: Path
) -> None:
    bundle = optimize(neutral, "bf16", target="neutral")
    source = np.array([[5, 9, 1], [7, 2, 0]])
    mask = np.array([[True] * 3, [True, True, False]])
    encoder = ReferenceEvaluator(onnx.load(bundle.path("encoder.onnx")))
    expected = encoder.run(None, {"source": source, "source_mask": mask})
    copy = emulated_bundle(bundle, tmp_path)
    emulated = Model(copy, open_backend(copy, None, threads=1))
    found = emulated.backend.encode(source, mask)
    for name, wanted in zip(encoder.output_names, expected, strict=True):
        assert np.asarray(wanted).dtype == ml_dtypes.bfloat16
        # Sums in another order sometimes round to an adjacent number.
        apart = np.abs(found[name] - np.asarray(wanted, np.float32))[mask[:, None].repeat(4, 1)]
        assert 0 < apart.max() <= 0.06 * np.abs(found[name]).max()
        assert np.array_equal(found[name], found[name].astype(ml_dtypes.bfloat16))
    expected_tokens = [r.tokens for r in load(neutral.directory, threads=1).generate(SOURCES)]
    found_tokens = [r.tokens for r in emulated.generate(SOURCES)]
    same = sum(a == b for a, b in zip(expected_tokens, found_tokens, strict=True))
    assert same >= len(SOURCES) - 2


def test_a_bundle_that_is_fp32_already(neutral: Bundle, tmp_path: Path) -> None:
    with pytest.raises(DragomanError, match="is neutral and in fp32 already"):
        optimize_bundle(neutral, tmp_path, target="neutral")


# Small graphs: y = LayerNormalization((x @ big) * 1) @ out


def graph(scale: float) -> ir.Model:
    generator = np.random.default_rng(0)

    def weight(name: str, numbers: Any) -> onnx.TensorProto:
        return onnx.numpy_helper.from_array(np.asarray(numbers, np.float32), name)

    return ir.from_proto(
        onnx.helper.make_model(
            onnx.helper.make_graph(
                [
                    onnx.helper.make_node("MatMul", ["x", "big"], ["large"], name="large"),
                    onnx.helper.make_node(
                        "LayerNormalization", ["large", "gain", "bias"], ["normal"], name="norm"
                    ),
                    onnx.helper.make_node("MatMul", ["normal", "out"], ["y"], name="last"),
                ],
                "g",
                [onnx.helper.make_tensor_value_info("x", 1, ["batch", 6])],
                [onnx.helper.make_tensor_value_info("y", 1, ["batch", 3])],
                [
                    weight("big", generator.standard_normal((6, 8)) * scale),
                    weight("gain", np.ones(8)),
                    weight("bias", np.zeros(8)),
                    weight("out", generator.standard_normal((8, 3))),
                ],
                value_info=[
                    onnx.helper.make_tensor_value_info(n, 1, ["batch", 8])
                    for n in ("large", "normal")
                ],
            ),
            opset_imports=[onnx.helper.make_opsetid("", 24)],
            ir_version=10,
        )
    )


X = {"x": np.random.default_rng(1).standard_normal((7, 6)).astype(np.float32)}


def half(model: ir.Model, dtype: ir.DataType = ir.DataType.FLOAT16) -> Half:
    return Half(dtype, largest_magnitudes(model, [X]), frozenset(), 1e-2)


def dtypes(model: ir.Model) -> dict[str | None, str]:
    return {node.name: str(node.outputs[0].dtype) for node in model.graph}


def test_a_value_that_would_overflow_keeps_its_producer_and_consumer_in_fp32() -> None:
    model = graph(1e5)
    expected: Any = run(model, X)["y"]
    (record,) = apply_passes(model, [half(model)], graph="g", samples=X)
    assert dtypes(model) == {
        "cast_x.float": "FLOAT",
        "large": "FLOAT",
        "norm": "FLOAT",
        "cast_normal.float16": "FLOAT16",
        "last": "FLOAT16",
    }
    assert [r.node for r in record.refusals] == ["large", "norm"]
    assert "big reaches" in record.refusals[0].reason
    assert "large reaches" in record.refusals[1].reason
    assert record.difference is not None and record.difference < 2e-3
    found: Any = run(model, X)["y"]
    assert np.array_equal(found, found.astype(np.float16)) and np.isfinite(found).all()
    np.testing.assert_allclose(found, expected, atol=0.02)


def test_the_same_graph_needs_no_fp32_in_bf16_or_with_small_weights() -> None:
    for scale, dtype in ((1e5, ir.DataType.BFLOAT16), (1.0, ir.DataType.FLOAT16)):
        model = graph(scale)
        changes = half(model, dtype).apply(model)
        assert changes.refusals == () and changes.matches == 3
        assert set(dtypes(model).values()) == {str(dtype)}


def test_without_calibration_an_overflow_is_detected_by_running() -> None:
    model = graph(2.5e4)
    blind = Half(ir.DataType.FLOAT16, {}, frozenset(), 1e-2)
    with pytest.raises(PassError, match=r"pass fp16, after none: output y becomes NaN or infinite"):
        apply_passes(model, [blind], graph="g", samples=X)


def test_an_output_may_stay_float32() -> None:
    model = graph(1.0)
    Half(ir.DataType.FLOAT16, {}, frozenset({"y"}), 1e-2).apply(model)
    assert [(v.name, str(v.dtype)) for v in model.graph.outputs] == [("y", "FLOAT")]
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert run(model, X)["y"].dtype == np.float32


def test_an_input_may_stay_float32() -> None:
    model = graph(1.0)
    Half(ir.DataType.FLOAT16, {}, frozenset({"x"}), 1e-2).apply(model)
    assert [(v.name, str(v.dtype)) for v in model.graph.inputs] == [("x", "FLOAT")]
    assert [str(v.dtype) for v in model.graph.outputs] == ["FLOAT16"]
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    expected = run(graph(1.0), X)["y"]
    np.testing.assert_allclose(
        np.asarray(run(model, X)["y"], float), np.asarray(expected, float), rtol=2e-2
    )


def test_largest_magnitudes_cover_all_inputs() -> None:
    model = graph(2.0)
    big = model.graph.initializers["big"].const_value
    assert big is not None
    other = {"x": -3 * X["x"]}
    found = largest_magnitudes(model, [X, other, X])
    assert found["large"] == pytest.approx(np.abs(other["x"] @ big.numpy()).max(), rel=1e-5)
    assert found["x"] == pytest.approx(np.abs(other["x"]).max())
    assert set(found) == {"x", "large", "normal", "y"}
