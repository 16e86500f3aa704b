"""What passes are checked by: samples, branches, a graph's own rounding, and its interface."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from onnxruntime.transformers.float16 import convert_float_to_float16

from docs.tools.fusion_table.exported_model import serialized
from docs.tools.fusion_table.zoo import ZOO
from dragoman.optimize.checking.branches import not_executed
from dragoman.optimize.checking.interface import read_interface
from dragoman.optimize.checking.samples import sample_sets
from dragoman.optimize.fusions import EXPAND_MASKS
from dragoman.optimize.graph_pass import Changes, GraphPass, PassError
from dragoman.optimize.graph_values import infer_shapes
from dragoman.optimize.onnx_file import optimize_file
from dragoman.optimize.pipeline import apply_passes
from dragoman.optimize.running import Runner

from ..export_cache import cached, hash_of_makers
from ..small_gpt2 import small_gpt2

HEADER = '<ir_version: 10, opset_import: ["" : 23]>'


def graph(text: str, **weights: NDArray[np.generic]) -> ir.Model:
    """A graph in ONNX's text syntax, with initializers."""
    proto = onnx.parser.parse_model(f"{HEADER} g {text}")
    proto.graph.initializer.extend(numpy_helper.from_array(w, n) for n, w in weights.items())
    return ir.from_proto(proto)


@pytest.mark.parametrize(
    "total", ["t", "past+seq", "past + seq", "total_length"], ids=lambda total: total
)
def test_a_mask_covers_past_and_sequence(total: str) -> None:
    model = graph(
        "(int64[batch,seq] ids, float[batch,2,past,4] past_key, int64[n,t] "
        "attention_mask) => (float y) { x = Cast<to=1>(ids) y = ReduceSum(x) }"
    )
    model.graph.inputs[2].shape = ir.Shape(["n", total])
    shapes = {name: value.shape for name, value in sample_sets(model)[0].items()}
    past, sequence = shapes["past_key"][2], shapes["ids"][1]
    assert past != sequence
    assert shapes["attention_mask"] == (shapes["ids"][0], past + sequence)


@pytest.mark.parametrize(
    "inputs, condition",
    [
        ("float[b,2,past,4] past_key", "n = Size(past_key) k = Constant<value_int=0>() "
         "Equal(n, k)"),
        ("int64[b,s] attention_mask", "n = ReduceMax<keepdims=0>(attention_mask) "
         "k = Constant<value_int=0>() Equal(n, k)"),
        ("int64[b,s] ids", "n = Shape<start=1,end=2>(ids) k = Constant<value_ints=[512]>() "
         "Greater(n, k)"),
        ("int64 mode", "k = Constant<value_int=3>() Equal(mode, k)"),
        ("float level", "k = Constant<value_float=3.0>() l = Constant<value_float=3.5>() "
         "n = Greater(level, k) o = Less(level, l) And(n, o)"),
        ("bool f, bool[1] h", "n = Not(h) And(f, n)"),
        ("uint8[1] f", "Cast<to=9>(f)"),
    ],
)  # fmt: skip
def test_inputs_are_sought_that_take_each_branch(inputs: str, condition: str) -> None:
    nodes, last = condition.rsplit(") ", 1) if ") " in condition else ("", condition)
    nodes = f"{nodes})" if nodes else ""
    model = graph(
        f"(float[b,3] x, {inputs}) => (float[b,3] y) {{ {nodes} c = {last} y = If(c) "
        "<then_branch: graph = left () => (float[b,3] p) { p = Relu(x) }, else_branch: "
        "graph = right () => (float[b,3] q) { q = Neg(x) }> }"
    )
    sets = sample_sets(model)
    assert not_executed(model, sets) == ()
    assert all(samples["x"].size for samples in sets)


def test_sizes_are_sought_with_which_the_graph_runs() -> None:
    model = graph("(float[a,b] x, float[c,d] y) => (float[a,d] z) { z = MatMul(x, y) }")
    (samples,) = sample_sets(model)
    assert samples["x"].shape[1] == samples["y"].shape[0]


def test_ids_are_valid_for_their_own_table_only() -> None:
    """BERT has two token types, and many more words."""
    model = graph(
        "(int64[b,s] ids, int64[b,s] types) => (float[b,s,2] y) "
        "{ a = Gather(words, ids) t = Gather(kinds, types) y = Add(a, t) }",
        words=np.ones((50, 2), np.float32),
        kinds=np.ones((2, 2), np.float32),
    )
    samples = sample_sets(model)[0]
    assert samples["ids"].max() >= 2
    assert samples["types"].max() < 2


def test_a_query_without_keys_is_among_the_samples() -> None:
    model = graph("(int64[b,s] mask, bool[b,s] padding) => (int64[b,s] y) { y = Identity(mask) }")
    sets = sample_sets(model)
    assert any(not row.any() for samples in sets for row in samples["mask"])
    assert any(row.all() for samples in sets for row in samples["padding"])
    assert any(not row.any() for samples in sets for row in samples["padding"])


def test_samples_of_a_graph_that_a_pass_repairs() -> None:
    """ONNX Runtime does not accept a mask with one row for several queries."""
    model = graph(
        "(float[n,2,3,8] q, float[n,2,4,8] k, bool[n,1,1,4] mask) => (float[n,2,3,8] y) "
        "{ y = Attention(q, k, k, mask) }"
    )
    assert len(sample_sets(model)) == 1
    assert len(sample_sets(model, [EXPAND_MASKS])) > 1
    assert [node.op_type for node in model.graph] == ["Attention"]


@dataclass
class Damage(GraphPass):
    """Multiplies the first constant of a branch."""

    branch: str
    name: str = "damage"
    tolerance: float = 1e-5
    requires: frozenset[str] = frozenset()
    ensures: frozenset[str] = frozenset()

    def apply(self, model: ir.Model) -> Changes:
        found = next(g for g in model.graphs() if g.name == self.branch)
        node = next(node for node in found if node.op_type == "Constant")
        node.attributes["value_float"] = ir.AttrFloat32("value_float", 3.0)
        return Changes(1)


BRANCHES = (
    "{ s = ReduceSum<keepdims=0>(x) l = Constant<value_float=40.0>() c = Greater(s, l) y = If(c) "
    "<then_branch: graph = left () => (float[b,3] p) { k = Constant<value_float=2.0>() "
    "p = Mul(x, k) }, else_branch: graph = right () => (float[b,3] q) "
    "{ m = Constant<value_float=2.0>() q = Div(x, m) }> }"
)


@pytest.mark.parametrize("branch", ["left", "right"])
def test_a_pass_that_damages_a_branch_is_caught(branch: str) -> None:
    model = graph(f"(float[b,3] x) => (float[b,3] y) {BRANCHES}")
    with pytest.raises(PassError, match="pass damage, after none: changes output y"):
        apply_passes(model, [Damage(branch)], graph="g", samples=sample_sets(model))


@dataclass
class Breach(GraphPass):
    """Changes the interface."""

    what: str
    name: str = "breach"
    tolerance: float = 1e-5
    requires: frozenset[str] = frozenset()
    ensures: frozenset[str] = frozenset()

    def apply(self, model: ir.Model) -> Changes:
        outputs = model.graph.outputs
        if self.what == "drops":
            del outputs[1]
        elif self.what == "types":
            outputs[0].type = ir.TensorType(ir.DataType.DOUBLE)
        else:
            outputs[:] = list(outputs)[::-1]
        return Changes(1)


@pytest.mark.parametrize(
    "what, reason",
    [
        ("drops", r"expected the outputs \['y', 'z'\], found \['y'\]"),
        ("types", "expected output y of type"),
        ("exchanges", r"expected the outputs \['y', 'z'\], found \['z', 'y'\]"),
    ],
)
@pytest.mark.parametrize("compare", [True, False])
def test_a_pass_that_changes_the_interface_is_named(what: str, reason: str, compare: bool) -> None:
    model = graph("(float[b,3] x) => (float[b,3] y, float[b,3] z) { y = Relu(x) z = Neg(x) }")
    samples = {"x": np.ones((2, 3), np.float32)} if compare else None
    with pytest.raises(PassError, match=f"pass breach, after none: {reason}"):
        apply_passes(
            model, [Breach(what)], graph="g", samples=samples, interface=read_interface(model)
        )


@dataclass
class Scale(GraphPass):
    """Multiplies a weight."""

    factor: float
    name: str = "scale"
    tolerance: float = 1e-5
    requires: frozenset[str] = frozenset()
    ensures: frozenset[str] = frozenset()

    def apply(self, model: ir.Model) -> Changes:
        value = model.graph.initializers["w"]
        assert value.const_value is not None
        numbers = value.const_value.numpy()
        value.const_value = ir.tensor((numbers * self.factor).astype(numbers.dtype), name="w")
        return Changes(1)


@pytest.mark.parametrize("factor, refused", [(1 + 2**-10, False), (1.05, True)])
def test_what_a_pass_may_change_follows_the_arithmetic_inside(factor: float, refused: bool) -> None:
    """Inputs and outputs are float32, but the product is computed in float16."""
    model = graph(
        "(float[b,64] x) => (float[b,8] y) "
        "{ h = Cast<to=10>(x) p = MatMul(h, w) y = Cast<to=1>(p) }",
        w=np.random.default_rng(0).standard_normal((64, 8)).astype(np.float16),
    )
    infer_shapes(model)
    samples, interface = sample_sets(model), read_interface(model)
    if refused:
        with pytest.raises(PassError, match=r"output y is .* from the computation in float32"):
            apply_passes(model, [Scale(factor)], graph="g", samples=samples, interface=interface)
    else:
        (record,) = apply_passes(
            model, [Scale(factor)], graph="g", samples=samples, interface=interface
        )
        assert record.difference is not None
        assert 1e-5 < record.difference < record.tolerance


@pytest.fixture(scope="module")
def bart() -> onnx.ModelProto:
    (model,) = (m for m in ZOO if m.name == "bart sdpa, opset 17")
    key = f"{hash_of_makers('docs.tools.fusion_table.zoo')} {model.name}"
    return onnx.load_from_string(cached(key, lambda: serialized(model)))


def outputs(model: onnx.ModelProto, feed: dict[str, NDArray[np.generic]]) -> NDArray[np.float32]:
    """The first output, as the graph is, on ONNX Runtime's own kernels."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    result: NDArray[np.float32] = session.run(None, feed)[0]
    return result


def test_bart_in_float16_stays_as_near_float32(bart: onnx.ModelProto, tmp_path: Path) -> None:
    source, result = tmp_path / "half.onnx", tmp_path / "fused.onnx"
    half = convert_float_to_float16(bart, keep_io_types=True)
    onnx.save(half, source)
    records = optimize_file(source, result)
    assert [(r.name, r.matches) for r in records][-2:] == [("gelu", 2), ("attention", 3)]
    feed: dict[str, NDArray[np.generic]] = {
        "ids": np.random.default_rng(1).integers(0, 61, (2, 7)),
        "mask": np.array([[1] * 7, [1] * 5 + [0] * 2]),
        "target": np.random.default_rng(2).integers(0, 61, (2, 5)),
    }
    exact, given, found = (outputs(m, feed) for m in (bart, half, onnx.load(result)))
    assert np.abs(found - exact).max() <= 2 * np.abs(given - exact).max()


@pytest.mark.parametrize("target", ["neutral", "cpu"])
def test_a_decoder_that_writes_in_its_caches_is_compared(tmp_path: Path, target: str) -> None:
    """The queries fit into a cache after its position, and `read` is one of them."""
    small_gpt2(tmp_path)
    source, result = tmp_path / "bundle" / "decoder.onnx", tmp_path / "optimized.onnx"
    (samples,) = sample_sets(ir.load(source))
    assert samples["token"].shape[1] == samples["past_key_0"].shape[2] > 1
    assert all(r.difference is not None for r in optimize_file(source, result, target=target))


def test_libraries_write_nothing_of_what_they_cannot_infer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A merged decoder declares shapes that ONNX's inference contradicts."""
    model = graph(f"(float[b,3] x) => (float[b,3] y) {BRANCHES}")
    node = model.graph[-1]
    branch = node.attributes["then_branch"].as_graph()
    branch.outputs[0].shape = ir.Shape([7, 7, 7])
    ir.save(model, tmp_path / "source.onnx")
    with caplog.at_level(logging.WARNING):
        optimize_file(tmp_path / "source.onnx", tmp_path / "result.onnx", compare=False)
    assert caplog.records == []


def test_samples_of_a_given_set_are_kept() -> None:
    model = graph(f"(float[b,3] x) => (float[b,3] y) {BRANCHES}")
    low = {"x": np.zeros((2, 3), np.float32)}
    (record,) = apply_passes(model, [Damage("left")], graph="g", samples=low)
    assert record.not_compared == ("then_branch of If y",)
    assert replace(record, not_compared=()) != record
    assert Runner(model).run(low)["y"].shape == (2, 3)
