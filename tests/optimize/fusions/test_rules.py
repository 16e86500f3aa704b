"""Each fusion on small graphs: what it replaces, and what it must leave unchanged."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from dragoman.optimize.fusions import ATTENTION, CLEANUP, GELU, LAYER_NORM, OPSET_PASS
from dragoman.optimize.graph_pass import GraphPass, PassError
from dragoman.optimize.running import difference, run

ROOT, HALF_ROOT, CUBIC = 0.70710678, 0.79788456, 0.044715


@dataclass(frozen=True)
class Case:
    """A graph in ONNX's text syntax, and the expected number of fused operators."""

    name: str
    step: GraphPass
    operator: str
    fused: int
    inputs: str
    body: str
    reason: str = ""
    opset: int = 23


X = "float[b,3,7] x"
QKV = "float[b,2,3,5] q, float[b,2,7,5] k, float[b,2,7,4] v"
GAIN = "gain = Constant<value_floats=[1.5,2.0,-1.0,0.5,1.0,3.0,0.1]>()"
BIAS = "bias = Constant<value_floats=[0.5,2.0,1.0,0.5,1.0,3.0,0.1]>()"
NUMBERS = "two = Constant<value_float=2.0>() eps = Constant<value_float=1e-5>()"
AXES = "axes = Constant<value_ints=[-1]>()"
MEAN = f"{AXES} {NUMBERS} m = ReduceMean(x, axes) d = Sub(x, m)"
VARIANCE = "s = Pow(d, two) n = ReduceMean(s, axes) e = Add(n, eps) r = Sqrt(e)"
SCORES = "t = Transpose<perm=[0,1,3,2]>(k) s = MatMul(q, t)"
SCALED = f"{SCORES} c = Constant<value_float=0.3>() z = Mul(s, c)"


def norm(name: str, fused: int, body: str, reason: str = "", inputs: str = X) -> Case:
    return Case(f"norm: {name}", LAYER_NORM, "LayerNormalization", fused, inputs, body, reason)


def rms(name: str, fused: int, body: str, reason: str = "") -> Case:
    return Case(f"rms: {name}", LAYER_NORM, "RMSNormalization", fused, X, body, reason)


def gelu(name: str, fused: int, body: str, reason: str = "") -> Case:
    half = "h = Constant<value_float=0.5>() o = Constant<value_float=1.0>() "
    half += f"r = Constant<value_float=1.41421356>() i = Constant<value_float={ROOT}>() "
    half += f"p = Constant<value_float={HALF_ROOT}>() u = Constant<value_float={CUBIC}>() "
    half += "three = Constant<value_float=3.0>() "
    return Case(f"gelu: {name}", GELU, "Gelu", fused, X, half + body, reason)


def attention(name: str, fused: int, body: str, reason: str = "", more: str = "") -> Case:
    inputs = QKV + (f", {more}" if more else "")
    return Case(f"attention: {name}", ATTENTION, "Attention", fused, inputs, body, reason)


def cleanup(name: str, operator: str, left: int, body: str, inputs: str = X) -> Case:
    return Case(f"cleanup: {name}", CLEANUP, operator, left, inputs, body)


CASES = [
    norm("gain and bias", 1, f"{MEAN} {VARIANCE} y0 = Div(d, r) {GAIN} {BIAS} "
         "y1 = Mul(y0, gain) y = Add(y1, bias)"),
    norm("gain first", 1, f"{MEAN} {VARIANCE} y0 = Div(d, r) {GAIN} y = Mul(gain, y0)"),
    norm("neither", 1, f"{MEAN} {VARIANCE} y = Div(d, r)"),
    norm("reciprocal", 1, f"{MEAN} {VARIANCE} i = Reciprocal(r) {GAIN} "
         "y0 = Mul(i, d) y = Mul(y0, gain)"),
    norm("squared by Mul, epsilon first", 1, f"{MEAN} s = Mul(d, d) n = ReduceMean(s, axes) "
         f"e = Add(eps, n) r = Sqrt(e) {GAIN} y0 = Div(d, r) y = Mul(y0, gain)"),
    norm("difference computed twice", 1, f"{MEAN} d2 = Sub(x, m) s = Pow(d2, two) "
         f"n = ReduceMean(s, axes) e = Add(n, eps) r = Sqrt(e) {GAIN} y0 = Div(d, r) "
         "y = Mul(y0, gain)"),
    norm("half precision, computed in single", 1, "w = Cast<to=1>(x) "
         + MEAN.replace("(x", "(w") + f" {VARIANCE} y0 = Div(d, r) h = Cast<to=10>(y0) {GAIN} "
         "g = Cast<to=10>(gain) y1 = Mul(h, g) y = Cast<to=1>(y1)",
         inputs="float16[b,3,7] x"),
    norm("another axis", 0, f"{MEAN} {VARIANCE} y = Div(d, r)".replace("[-1]", "[1]"),
         "last axis"),
    norm("squares of something else", 0, f"{MEAN} s = Pow(x, two) n = ReduceMean(s, axes) "
         "e = Add(n, eps) r = Sqrt(e) y = Div(d, r)", "value that is divided"),
    norm("cubes", 0, f"{MEAN} {VARIANCE} y = Div(d, r)".replace("=2.0", "=3.0"), "squares"),
    norm("a width that is not known", 0, f"{MEAN} {VARIANCE} y = Div(d, r)",
         "known size", inputs="float[b,3,w] x"),
    rms("reciprocal", 1, f"{AXES} {NUMBERS} s = Pow(x, two) n = ReduceMean(s, axes) "
        f"e = Add(n, eps) r = Sqrt(e) i = Reciprocal(r) {GAIN} y0 = Mul(x, i) y = Mul(gain, y0)"),
    rms("one divided by the root", 1, f"{AXES} {NUMBERS} s = Mul(x, x) n = ReduceMean(s, axes) "
        f"e = Add(n, eps) r = Sqrt(e) o = Constant<value_float=1.0>() i = Div(o, r) {GAIN} "
        "y0 = Mul(x, i) y = Mul(gain, y0)"),
    rms("two divided by the root", 0, f"{AXES} {NUMBERS} s = Mul(x, x) n = ReduceMean(s, axes) "
        f"e = Add(n, eps) r = Sqrt(e) i = Div(two, r) {GAIN} y0 = Mul(x, i) y = Mul(gain, y0)",
        "expected 1 divided"),
    gelu("erf, half last", 1, "a = Div(x, r) b = Erf(a) c = Add(b, o) d = Mul(x, c) y = Mul(d, h)"),
    gelu("erf, half first", 1, "a = Mul(x, i) b = Erf(a) c = Add(o, b) "
         "d = Mul(h, x) y = Mul(d, c)"),
    gelu("erf, half between", 1, "a = Mul(i, x) b = Erf(a) c = Add(o, b) "
         "d = Mul(c, h) y = Mul(d, x)"),
    gelu("tanh, cube by Pow", 1, "a = Pow(x, three) b = Mul(a, u) c = Add(x, b) d = Mul(c, p) "
         "e = Tanh(d) f = Add(e, o) g = Mul(x, h) y = Mul(g, f)"),
    gelu("tanh, as a product", 1, "a = Mul(x, x) b = Mul(a, u) c = Add(b, o) d = Mul(x, p) "
         "e = Mul(d, c) t = Tanh(e) f = Add(t, o) g = Mul(x, h) y = Mul(g, f)"),
    gelu("another factor", 0, "a = Div(x, r) b = Erf(a) c = Add(b, o) d = Mul(x, c) y = Mul(d, p)",
         "factor of 0.5"),
    gelu("another argument", 0, "a = Mul(x, p) b = Erf(a) c = Add(b, o) "
         "d = Mul(x, c) y = Mul(d, h)",
         "expected Erf("),
    gelu("another x", 0, "a = Div(x, r) b = Erf(a) c = Add(b, o) k = Neg(x) l = Relu(k) "
         "d = Mul(l, c) y = Mul(d, h)", "polynomial"),
    attention("no scale, no mask", 1, f"{SCORES} w = Softmax<axis=-1>(s) y = MatMul(w, v)"),
    attention("scaled after", 1, f"{SCALED} w = Softmax<axis=3>(z) y = MatMul(w, v)"),
    attention("divided before", 1, "c = Constant<value_float=1.7>() q1 = Div(q, c) "
              + SCORES.replace("(q", "(q1") + " w = Softmax<axis=-1>(s) y = MatMul(w, v)"),
    attention("root of the scale on both, NaN guarded", 1, "c = Constant<value_float=0.6>() "
              "q1 = Mul(q, c) t = Transpose<perm=[0,1,3,2]>(k) t1 = Mul(t, c) s = MatMul(q1, t1) "
              "w = Softmax<axis=-1>(s) n = IsNaN(w) o = Constant<value_float=0.0>() "
              "g = Where(n, o, w) y = MatMul(g, v)"),
    attention("mask of one row", 1, f"{SCALED} a = Add(z, m) w = Softmax<axis=-1>(a) "
              "y = MatMul(w, v)", more="float[b,1,1,7] m"),
    attention("mask of two axes, first", 1, f"{SCALED} a = Add(m, z) w = Softmax<axis=-1>(a) "
              "y = MatMul(w, v)", more="float[3,7] m"),
    attention("mask before the scale", 1, f"{SCORES} a = Add(s, m) c = Constant<value_float=0.3>() "
              "z = Mul(a, c) w = Softmax<axis=-1>(z) y = MatMul(w, v)", more="float[b,1,1,7] m"),
    attention("bias and mask", 1, f"{SCORES} a = Add(s, p) z = Add(a, m) w = Softmax<axis=-1>(z) "
              "y = MatMul(w, v)", more="float[1,2,3,7] p, float[b,1,1,7] m"),
    attention("filled in", 1, f"{SCALED} f = Constant<value_float=-1e9>() a = Where(m, f, z) "
              "w = Softmax<axis=-1>(a) y = MatMul(w, v)", more="bool[b,1,1,7] m"),
    attention("kept", 1, f"{SCALED} f = Constant<value_float=-inf>() a = Where(m, z, f) "
              "w = Softmax<axis=-1>(a) y = MatMul(w, v)".replace("-inf", "-3e38"),
              more="bool[b,1,3,7] m"),
    attention("keys transposed with their heads", 1, "k1 = Transpose<perm=[0,2,1,3]>(k) "
              "t = Transpose<perm=[0,2,3,1]>(k1) s = MatMul(q, t) w = Softmax<axis=-1>(s) "
              "y = MatMul(w, v)"),
    attention("keys stored transposed", 1, "s = MatMul(q, t) w = Softmax<axis=-1>(s) "
              "y = MatMul(w, v)", more="float[b,2,5,7] t"),
    attention("past joined", 1, "k2 = Concat<axis=2>(pk, k) v2 = Concat<axis=2>(pv, v) "
              "t = Transpose<perm=[0,1,3,2]>(k2) s = MatMul(q, t) w = Softmax<axis=-1>(s) "
              "y = MatMul(w, v2)", more="float[b,2,6,5] pk, float[b,2,6,4] pv"),
    attention("three axes", 1, "t = Transpose<perm=[0,2,1]>(c) s = MatMul(a, t) z = Add(s, m) "
              "w = Softmax<axis=-1>(z) y = MatMul(w, d)",
              more="float[n,3,5] a, float[n,7,5] c, float[n,7,4] d, float[n,1,7] m"),
    attention("three axes, a mask of two", 1, "t = Transpose<perm=[0,2,1]>(c) s = MatMul(a, t) "
              "z = Add(s, m) w = Softmax<axis=-1>(z) y = MatMul(w, d)",
              more="float[n,3,5] a, float[n,7,5] c, float[n,7,4] d, float[3,7] m"),
    attention("weights are read elsewhere", 0, f"{SCORES} w = Softmax<axis=-1>(s) "
              "a = MatMul(w, v) l = ReduceSum(w) y = Add(a, l)", "read by one MatMul"),
    attention("another axis", 0, f"{SCORES} w = Softmax<axis=1>(s) y = MatMul(w, v)", "axis 1"),
    attention("a scale that varies", 0, f"{SCORES} z = Mul(s, c) w = Softmax<axis=-1>(z) "
              "y = MatMul(w, v)", "constant scale", more="float c"),
    attention("filled in with a small number", 0, f"{SCALED} f = Constant<value_float=-5.0>() "
              "a = Where(m, f, z) w = Softmax<axis=-1>(a) y = MatMul(w, v)", "found -5",
              more="bool[b,1,1,7] m"),
    attention("keys of one head for all", 0, "t = Transpose<perm=[0,1,3,2]>(k1) s = MatMul(q, t) "
              "w = Softmax<axis=-1>(s) y = MatMul(w, v)", "queries' batch and heads",
              more="float[b,1,7,5] k1"),
    attention("no product", 0, "w = Softmax<axis=-1>(q) t = Transpose<perm=[0,1,3,2]>(q) "
              "y = MatMul(w, t)", "query @ key"),
    cleanup("two Transposes", "Transpose", 0, "a = Transpose<perm=[0,2,1]>(x) "
            "b = Transpose<perm=[0,2,1]>(a) y = Relu(b)"),
    cleanup("a Transpose that stays", "Transpose", 1, "a = Transpose<perm=[0,2,1]>(x) y = Relu(a)"),
    cleanup("Reshape to the same", "Reshape", 0, "c = Constant<value_ints=[0,3,7]>() "
            "a = Reshape(x, c) y = Relu(a)"),
    cleanup("a Reshape that stays", "Reshape", 1, "c = Constant<value_ints=[0,7,3]>() "
            "a = Reshape(x, c) y = Relu(a)"),
    cleanup("Cast to the same", "Cast", 0, "a = Cast<to=1>(x) y = Relu(a)"),
    cleanup("Dropout", "Dropout", 0, "a = Dropout(x) y = Relu(a)"),
    cleanup("Identity", "Identity", 0, "a = Identity(x) y = Relu(a)"),
    cleanup("a square of a constant", "Sqrt", 0, "c = Constant<value_float=4.0>() d = Sqrt(c) "
            "y = Mul(x, d)"),
]  # fmt: skip


def graph(case: Case, opset: int = 23) -> ir.Model:
    header = f'<ir_version: 10, opset_import: ["" : {opset}]>'
    model = ir.from_onnx_text(f"{header} g ({case.inputs}) => (float y) {{ {case.body} }}")
    model.graph.outputs[0].shape = None  # the syntax has no way to leave it open
    return model


def samples(model: ir.Model) -> dict[str, NDArray[np.generic]]:
    generator = np.random.default_rng(7)
    values: dict[str, NDArray[np.generic]] = {}
    for value in model.graph.inputs:
        assert value.shape is not None
        assert value.dtype is not None
        assert value.name is not None
        shape = [d if isinstance(d, int) else {"b": 3, "w": 7, "n": 5}[str(d)] for d in value.shape]
        array = generator.standard_normal(shape)
        if value.dtype == ir.DataType.BOOL:
            array = np.broadcast_to(np.arange(shape[-1]) % 3 == 0, shape)
        values[value.name] = np.asarray(array).astype(value.dtype.numpy())
    return values


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_fuses_supported_patterns_only_and_keeps_outputs(case: Case) -> None:
    model = graph(case)
    values = samples(model)
    before = run(model, values)
    OPSET_PASS.apply(model)
    if case.step is not CLEANUP:
        CLEANUP.apply(model)
    changes = case.step.apply(model)
    found = Counter(node.op_type for node in model.graph)
    assert found[case.operator] == case.fused, [refusal.reason for refusal in changes.refusals]
    _, apart = difference(before, run(model, values))
    assert apart < (2e-3 if "half precision" in case.name else 2e-6)
    if case.reason:
        assert any(case.reason in refusal.reason for refusal in changes.refusals), changes.refusals


@pytest.mark.parametrize("opset", [13, 18, 22, 23, 24])
def test_opset_is_at_least_23(opset: int) -> None:
    model = graph(CASES[0] if opset >= 18 else CASES[-1], opset)
    values = samples(model)
    before = run(model, values)
    changes = OPSET_PASS.apply(model)
    assert model.opset_imports[""] == max(opset, 23)
    assert changes.matches == (opset < 23)
    assert difference(before, run(model, values))[1] == 0


def test_a_graph_that_cannot_be_converted_is_reported() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 11]> '
        "g (float[2] x) => (float[2] y) { y = Unknown(x) }"
    )
    with pytest.raises(PassError, match="expected opset 23, found 11"):
        OPSET_PASS.apply(model)
