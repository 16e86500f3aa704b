"""Small graphs of other tools: each keeps its interface and what it computes, or is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from numpy.typing import NDArray

from dragoman.optimize.onnx_file import optimize_file

Feed = dict[str, NDArray[np.generic]]


def numbers(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


X = numbers(3, 5)
INFINITE = -1.5e38
"""What stands for -inf, which ONNX's text syntax does not have."""

YES, NO = np.array(True), np.array(False)


@dataclass(frozen=True)
class Graph:
    """A graph in ONNX's text syntax, and inputs that its outputs are compared on.

    Attributes:
        not_compared: the branches that no input can execute, as the record names them
        text: inputs, outputs and nodes
        more: functions that follow the graph
    """

    name: str
    text: str
    feeds: tuple[Feed, ...] = ({"x": X},)
    opset: int = 17
    domains: str = ""
    more: str = ""
    not_compared: tuple[str, ...] = ()
    tolerance: float = 1e-5

    def proto(self) -> onnx.ModelProto:
        head = f'<ir_version: 8, opset_import: ["" : {self.opset}{self.domains}]>'
        proto = onnx.parser.parse_model(f"{head} g {self.text} {self.more}")
        for attribute in (a for node in proto.graph.node for a in node.attribute):
            if attribute.f == np.float32(INFINITE):
                attribute.f = -np.inf
        return proto


FLOW = "(float[batch,5] x, bool c) => (float[batch,5] y, float[batch,5] z)"
BOTH = ({"x": X, "c": YES}, {"x": X, "c": NO})
GELU = (
    "r = Constant<value_float=1.41421356>() o = Constant<value_float=1.0>() "
    "h = Constant<value_float=0.5>() a = Div(x, r) b = Erf(a) e = Add(b, o) d = Mul(x, e) "
)


def masked(name: str, mask: str, nodes: str, *masks: NDArray[np.generic]) -> Graph:
    """Attention with a mask, the last of whose two rows masks everything."""
    qkv = {"q": numbers(2, 2, 3, 4), "k": numbers(2, 2, 6, 4, seed=1), "v": numbers(2, 2, 6, 4)}
    return Graph(
        f"masked: {name}",
        f"(float[2,2,3,4] q, float[2,2,6,4] k, float[2,2,6,4] v, {mask} m) => (float[2,2,3,4] y) "
        "{ t = Transpose<perm=[0,1,3,2]>(k) s = MatMul(q, t) "
        "low = Constant<value_float=-3.4028234663852886e38>() "
        "big = Constant<value_float=-10000.0>() one = Constant<value_float=1.0>() "
        f"nil = Constant<value_float=0.0>() inf = Constant<value_float={INFINITE}>() "
        f"{nodes} w = Softmax<axis=-1>(a) y = MatMul(w, v) }}",
        tuple({**qkv, "m": m} for m in masks),
        tolerance=2e-3 if "10000" in name else 1e-5,
    )


KEEP = np.array([[[[1, 1, 1, 0, 0, 0]]], [[[0] * 6]]], bool)
LEFT = np.array([[[[0, 0, 1, 1, 1, 1]]], [[[0] * 6]]], bool)
ADDED = [np.where(KEEP, 0, low).astype(np.float32) for low in (-np.inf, -3.4028235e38, -1e4, -1e9)]

GRAPHS = [
    Graph("nodes in another order", "(float[batch,5] x) => (float[batch,5] y) "
          "{ y = Neg(z) z = Relu(x) }"),
    Graph("identity of an output", "(float[batch,5] x) => (float[batch,5] y, float[batch,5] z) "
          "{ y = Relu(x) z = Identity(y) }"),
    Graph("identities in a row", "(float[batch,5] x) => (float[batch,5] z, float[batch,5] y, "
          "float[batch,5] w) { y = Relu(x) z = Identity(y) v = Identity(z) w = Identity(v) }"),
    Graph("identity of an input", "(float[batch,5] x) => (float[batch,5] y, float[batch,5] z) "
          "{ y = Identity(x) z = Identity(x) }"),
    Graph("an input is an output", "(float[batch,5] x) => (float[batch,5] x, float[batch,5] y) "
          "{ y = Relu(x) }"),
    Graph("the same computed twice", "(float[batch,5] x) => (float[batch,5] y, float[batch,5] z) "
          "{ y = Relu(x) z = Relu(x) }"),
    Graph("operators that change nothing", "(float[batch,5] x) => (float[batch,5] y, "
          "float[batch,5] z, float[batch,5] u, float[batch,5] w) { y = Relu(x) z = Cast<to=1>(y) "
          "s = Shape(y) u = Reshape(y, s) w = Dropout(u) }"),
    Graph("an initializer is an output", "(float[batch,5] x) => (float[batch,5] y, float[2] k) "
          "<float[2] k = {1.0, 2.0}> { y = Relu(x) }"),
    Graph("identities of an initializer", "(float[batch,5] x) => (float[2] a, float[2] b, "
          "float[batch,5] y) <float[2] k = {1.0, 2.0}> { a = Identity(k) b = Identity(k) "
          "y = Relu(x) }"),
    Graph("outputs that are constant", "(float[batch,5] x) => (float a, float b, float[batch,5] y) "
          "{ c = Constant<value_float=4.0>() a = Sqrt(c) b = Sqrt(c) y = Relu(x) }"),
    Graph("integers and truths", "(float[batch,5] x) => (int64[k] s, int64[k] t, bool[batch,5] b, "
          "bool[batch,5] d) { s = Shape(x) t = Identity(s) n = Constant<value_float=0.0>() "
          "b = Greater(x, n) d = Identity(b) }"),
    Graph("a name that a node inside has", "(float[batch,5] x) => (float[batch,5] y) "
          "{ z = Relu(x) a = Identity(z) y = Neg(a) }"),
    Graph("inputs that are not used", "(int64[n,s] ids, float[batch,5] x, bool[n] flag) => "
          "(float[batch,5] y) { y = Relu(x) }",
          ({"x": X, "ids": np.ones((2, 3), np.int64), "flag": np.ones(2, bool)},)),
    Graph("branches", f"{FLOW} {{ y, z = If(c) <then_branch: graph = t () => (float[batch,5] p, "
          "float[batch,5] q) { p = Relu(x) q = Neg(x) }, else_branch: graph = e () => "
          "(float[batch,5] u, float[batch,5] v) { u = Relu(x) v = Identity(u) }> }", BOTH),
    Graph("branches that return a value from outside", f"{FLOW} {{ h = Relu(x) y, z = If(c) "
          "<then_branch: graph = t () => (float[batch,5] p, float[batch,5] q) { p = Identity(h) "
          "q = Identity(h) }, else_branch: graph = e () => (float[batch,5] u, float[batch,5] v) "
          "{ u = Neg(h) v = Identity(x) }> }", BOTH),
    Graph("equal names in both branches, with a pattern", f"{FLOW} {{ y, z = If(c) <then_branch: "
          f"graph = t () => (float[batch,5] g, float[batch,5] d) {{ {GELU} g = Mul(d, h) }}, "
          f"else_branch: graph = e () => (float[batch,5] d, float[batch,5] g) {{ {GELU} "
          "g = Mul(d, h) }> }", BOTH),
    Graph("a branch within a branch", "(float[b,5] x, bool c, bool[1] k) => (float[b,5] y) "
          "{ y = If(c) <then_branch: graph = t () => (float[b,5] p) { p = If(k) <then_branch: "
          "graph = t2 () => (float[b,5] p2) { p2 = Identity(x) }, else_branch: graph = e2 () => "
          "(float[b,5] q2) { q2 = Neg(x) }> }, else_branch: graph = e () => (float[b,5] u) "
          "{ u = Abs(x) }> }",
          tuple({"x": X, "c": np.array(c), "k": np.array([k])}
                for c in (True, False) for k in (True, False))),
    Graph("a condition that is constant", "(float[batch,5] x) => (float[batch,5] y, "
          "float[batch,5] z) { c = Constant<value = bool {1}>() y, z = If(c) <then_branch: graph = "
          "t () => (float[batch,5] p, float[batch,5] q) { p = Relu(x) q = Identity(p) }, "
          "else_branch: graph = e () => (float[batch,5] u, float[batch,5] v) { u = Neg(x) "
          "v = Abs(x) }> }", not_compared=("else_branch of If y",)),
    Graph("a condition on the batch", "(float[batch,5] x) => (float[batch,5] y) { s = Shape"
          "<start=0,end=1>(x) n = Constant<value_ints=[1]>() c = Equal(s, n) y = If(c) "
          "<then_branch: graph = t () => (float[batch,5] p) { p = Identity(x) }, else_branch: "
          "graph = e () => (float[batch,5] u) { u = Neg(x) }> }", ({"x": X}, {"x": X[:1]})),
    Graph("a condition on a sum", "(float[batch,5] x) => (float[batch,5] y) { s = ReduceSum"
          "<keepdims=0>(x) n = Constant<value_float=90.0>() c = Greater(s, n) y = If(c) "
          "<then_branch: graph = t () => (float[batch,5] p) { p = Identity(x) }, else_branch: "
          "graph = e () => (float[batch,5] u) { u = Neg(x) }> }", ({"x": X}, {"x": 100 + X})),
    Graph("a condition that never holds", "(float[batch,5] x) => (float[batch,5] y) { "
          "q = Mul(x, x) s = ReduceSum<keepdims=0>(q) n = Constant<value_float=-1.0>() "
          "c = Less(s, n) y = If(c) <then_branch: graph = t () => (float[batch,5] p) { "
          "p = Identity(x) }, else_branch: graph = e () => (float[batch,5] u) { u = Neg(x) }> }",
          not_compared=("then_branch of If y",)),
    Graph("a condition on a token", "(int64[batch,s] ids) => (int64[batch,s] y) { f = Constant"
          "<value_ints=[0]>() l = Constant<value_ints=[-1]>() i = Reshape(ids, l) "
          "h = Gather(i, f) n = Constant<value_ints=[37]>() c = Equal(h, n) y = If(c) "
          "<then_branch: graph = t () => (int64[batch,s] p) { p = Identity(ids) }, "
          "else_branch: graph = e () => (int64[batch,s] u) { u = Neg(ids) }> }",
          ({"ids": np.full((2, 3), 37)}, {"ids": np.full((2, 3), 5)})),
    Graph("a loop", "(float[batch,5] x, int64 n) => (float[batch,5] y, float[k,batch,5] s, "
          "float[k,batch,5] r) { t = Constant<value = bool {1}>() y, s, r = Loop(n, t, x) <body: "
          "graph = body (int64 i, bool c, float[batch,5] a) => (bool co, float[batch,5] ao, "
          "float[batch,5] so, float[batch,5] ro) { co = Identity(c) ao = Sin(a) so = Identity(ao) "
          "ro = Identity(a) }> }", tuple({"x": X, "n": np.array(n)} for n in (0, 3))),
    Graph("a loop that zeros keep from ending", "(float[5] x) => (float[5] y, float[5] z) { "
          "t = Constant<value = bool {1}>() y = Loop(, t, x) <body: graph = body (int64 i, bool c, "
          "float[5] a) => (bool co, float[5] ao) { q = Mul(a, a) o = Constant<value_float=1.0>() "
          "ao = Add(q, o) s = ReduceMax<keepdims=0>(ao) h = Constant<value_float=99.0>() "
          "co = Less(s, h) }> z = Identity(y) }", ({"x": numbers(5)},)),
    Graph("a scan", "(float[5,4] x) => (float[4] y, float[5,4] z, float[5,4] w) { i = Constant"
          "<value_floats=[0.0,0.0,0.0,0.0]>() y, z, w = Scan(i, x) "
          "<num_scan_inputs: int = 1, body: graph = body (float[4] s, float[4] e) => "
          "(float[4] so, float[4] zo, float[4] wo) { "
          "so = Add(s, e) zo = Identity(so) wo = Identity(e) }> }", ({"x": numbers(5, 4)},)),
    Graph("a function", "(float[batch,5] x) => (float[batch,5] y, float[batch,5] z) "
          "{ y, z = local.two(x) }", domains=', "local" : 1',
          more='<domain: "local", opset_import: ["" : 17]> two (a) => (b, c) '
          "{ b = Relu(a) c = Identity(b) }"),
    Graph("a sequence", "(float[batch,5] x) => (seq(float[batch,5]) y, float[batch,5] z) "
          "{ z = Relu(x) v = Identity(z) y = SequenceConstruct(z, v, x) }"),
    Graph("an optional value", "(float[batch,5] x) => (optional(float[batch,5]) y, "
          "float[batch,5] z) { z = Relu(x) v = Identity(z) y = Optional(v) }"),
    Graph("a default that callers may replace", "(float[batch,5] x, float k) => (float[batch,5] y) "
          "<float k = {2.0}> { a = Mul(k, k) y = Mul(x, a) }",
          ({"x": X}, {"x": X, "k": np.array(3, np.float32)})),
    Graph("operators of ONNX Runtime", "(float[b,5] x) => (float[b,5] y, float[b,5] z) "
          "{ y = com.microsoft.QuickGelu(x) z = Identity(y) }", domains=', "com.microsoft" : 1'),
    Graph("an old opset", f"{FLOW} {{ y, z = If(c) <then_branch: graph = t () => "
          "(float[batch,5] p, float[batch,5] q) { p = Relu(x) q = Identity(p) }, "
          "else_branch: graph = e () => (float[batch,5] u, float[batch,5] v) { "
          "u = Softmax<axis=1>(x) v = Identity(x) }> }",
          BOTH, opset=11),
    Graph("half precision in branches", f"{FLOW} {{ h = Cast<to=10>(x) y, z = If(c) <then_branch: "
          "graph = t () => (float[batch,5] p, float[batch,5] q) { a = Erf(h) p = Cast<to=1>(a) "
          "q = Identity(p) }, else_branch: graph = e () => (float[batch,5] u, float[batch,5] v) "
          "{ b = Neg(h) u = Cast<to=1>(b) v = Cast<to=1>(h) }> }", BOTH, tolerance=2e-3),
    Graph("half precision, whose masks absorb scores or not", "(float[2,2,3,4] x, bool[2,1,1,3] m) "
          "=> (float[2,2,3,4] y) { q = Cast<to=10>(x) t = Transpose<perm=[0,1,3,2]>(q) "
          "s = MatMul(q, t) f = Constant<value_float=-65504.0>() l = Cast<to=10>(f) "
          "a = Where(m, s, l) w = Softmax<axis=-1>(a) p = MatMul(w, q) y = Cast<to=1>(p) }",
          ({"x": numbers(2, 2, 3, 4), "m": np.array([[[[1, 1, 0]]], [[[0] * 3]]], bool)},)),
    Graph("half precision, -inf", "(float[2,2,3,4] x, bool[2,1,1,3] m) "
          "=> (float[2,2,3,4] y) { q = Cast<to=10>(x) t = Transpose<perm=[0,1,3,2]>(q) "
          f"s = MatMul(q, t) f = Constant<value_float={INFINITE}>() l = Cast<to=10>(f) "
          "a = Where(m, s, l) w = Softmax<axis=-1>(a) p = MatMul(w, q) y = Cast<to=1>(p) }",
          ({"x": numbers(2, 2, 3, 4), "m": np.array([[[[1, 1, 0]]], [[[0] * 3]]], bool)},),
          tolerance=4e-3),
    Graph("float64, whose NaN becomes zero", "(double[2,2,3,4] q, double[3,3] m) => "
          "(double[2,2,3,4] y) { t = Transpose<perm=[0,1,3,2]>(q) s = MatMul(q, t) a = Add(s, m) "
          "w = Softmax<axis=-1>(a) n = IsNaN(w) f = Constant<value_float=0.0>() o = Cast<to=11>(f) "
          "g = Where(n, o, w) y = MatMul(g, q) }",
          ({"q": numbers(2, 2, 3, 4).astype(float),
            "m": np.where(np.tril(np.ones((3, 3)), -1), 0, -np.inf)},)),
    masked("lowest number", "bool[2,1,1,6]", "z = Where(m, nil, low) a = Add(s, z)", KEEP, LEFT),
    masked("replaced by the lowest", "bool[2,1,1,6]", "a = Where(m, s, low)", KEEP, LEFT),
    masked("infinite", "bool[2,1,1,6]", "z = Where(m, nil, inf) a = Add(s, z)", KEEP, LEFT),
    masked("added", "float[2,1,1,6]", "a = Add(s, m)", *ADDED),
    masked("10000, as BERT", "float[2,1,1,6]", "i = Sub(one, m) z = Mul(i, big) a = Add(s, z)",
           KEEP.astype(np.float32)),
    masked("lowest, twice", "float[2,1,1,6]", "z = Add(s, m) a = Add(z, m)",
           *ADDED[:2], ADDED[3]),
    masked("causal, then replaced", "bool[2,1,1,6]", "n = Constant<value_float=-1e9>() "
           "f = Constant<value_ints=[3,6]>() e = ConstantOfShape(f) u = EyeLike(e) "
           "k1 = Greater(u, nil) z = Where(k1, s, inf) a = Where(m, z, n)", KEEP, LEFT),
]  # fmt: skip


def outputs(path: Path, feed: Feed) -> list[NDArray[Any]]:
    """The outputs, each item of a sequence by itself."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    values = session.run(None, feed)
    return [item for value in values for item in (value if isinstance(value, list) else [value])]


def ports(path: Path) -> list[bytes]:
    graph = onnx.load(path).graph
    return [value.SerializeToString() for value in (*graph.input, *graph.output)]


@pytest.mark.parametrize("compare", [True, False], ids=["compared", "not compared"])
@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
def test_interface_and_outputs_stay(graph: Graph, compare: bool, tmp_path: Path) -> None:
    source, result = tmp_path / "source.onnx", tmp_path / "result.onnx"
    onnx.save(graph.proto(), source)
    for target in ("neutral", "cpu"):
        records = optimize_file(source, result, target=target, compare=compare, overwrite=True)
        assert records[0].not_compared == (graph.not_compared if compare else ())
        assert ports(result) == ports(source)
        for feed in graph.feeds:
            pairs = zip(outputs(source, feed), outputs(result, feed), strict=True)
            for expected, found in pairs:
                assert found.dtype == expected.dtype
                np.testing.assert_allclose(found, expected, rtol=0, atol=graph.tolerance)
        if graph.name.startswith("masked"):
            operators = [node.op_type for node in onnx.load(result).graph.node]
            assert ("Attention" in operators, "Softmax" in operators) == (True, False)
