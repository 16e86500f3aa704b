"""Moving the scale of cross-attention into the weights of its query projection."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from dragoman.optimize.cpu.projections import QUERY_SCALE
from dragoman.optimize.pipeline import apply_passes
from dragoman.runtime import Bundle
from dragoman.runtime.format.manifest import PassRecord

Optimize = Callable[..., Bundle]

RANDOM = np.random.default_rng(0)
WEIGHT = RANDOM.integers(-9, 9, (5, 8)).astype(np.float32)
BIAS = RANDOM.integers(-9, 9, 8).astype(np.float32)


def attention(
    query: str, *, heads_apart: bool = True, attributes: str = "", rows: str = "b"
) -> ir.Model:
    keys = "float[b,2,s,4]" if heads_apart else "float[b,s,8]"
    weight, bias = (", ".join(map(str, numbers.ravel())) for numbers in (WEIGHT, BIAS))
    return ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]> '
        f"g (float[{rows},q,5] x, float[{rows},q,8] z, {keys} k, {keys} v, int32[b,s] mask) => "
        f"(float[b,t,8] y) <float[5,8] w = {{{weight}}}, float[8] c = {{{bias}}}, "
        "int64[3] by_source = {3, -1, 8}> "
        f"{{ {query} y = com.microsoft.MultiHeadAttention<num_heads=2{attributes}>"
        "(p, k, v, , mask) }"
    )


def applied(model: ir.Model, *, rows: int = 3) -> PassRecord:
    keys = next(value.shape for value in model.graph.inputs if value.name == "k")
    assert keys is not None
    shape = [d if isinstance(d, int) else {"b": 3, "s": 7}[str(d)] for d in keys]
    samples = {
        "x": RANDOM.standard_normal((rows, 2, 5)).astype(np.float32),
        "z": RANDOM.standard_normal((rows, 2, 8)).astype(np.float32),
        "k": RANDOM.standard_normal(shape).astype(np.float32),
        "v": RANDOM.standard_normal(shape).astype(np.float32),
        "mask": (np.arange(7) < np.array([[1], [4], [7]])).astype(np.int32),
    }
    (record,) = apply_passes(model, [QUERY_SCALE], graph="g", samples=samples)
    return record


@pytest.mark.parametrize("bias", [False, True])
def test_weights_of_queries_that_rows_of_a_source_put_together_are_scaled(bias: bool) -> None:
    """Two queries of each of two rows are four of one source."""
    query = "h = MatMul(x, w) r = Add(h, c)" if bias else "r = MatMul(x, w)"
    model = attention(f"{query} p = Reshape(r, by_source)", rows="r")
    record = applied(model, rows=6)
    assert (record.matches, record.refusals) == (1, ())
    assert record.difference is not None and record.difference < 1e-6
    reshape = next(n for n in model.graph if n.op_type == "Reshape")
    attended = next(n for n in model.graph if n.op_type == "MultiHeadAttention")
    assert attended.inputs[0] is reshape.outputs[0]
    assert attended.attributes.get_float("scale") == 1


@pytest.mark.parametrize("attributes, scale", [("", 0.5), (", scale=0.3", np.float32(0.3))])
@pytest.mark.parametrize("bias", [False, True])
def test_weights_and_bias_are_scaled(attributes: str, scale: float, bias: bool) -> None:
    """Heads of size 4, so the default scale is 1 / sqrt(4)."""
    query = "h = MatMul(x, w) p = Add(h, c)" if bias else "p = MatMul(x, w)"
    model = attention(query, attributes=attributes)
    record = applied(model)
    assert (record.matches, record.refusals) == (1, ())
    assert record.difference is not None and record.difference < 1e-6
    attended = next(n for n in model.graph if n.op_type == "MultiHeadAttention")
    assert attended.attributes.get_float("scale") == 1
    assert attended.attributes.get_int("num_heads") == 2
    found = {name: value.const_value for name, value in model.graph.initializers.items()}
    product = next(n for n in model.graph if n.op_type == "MatMul")
    weight = found[str(product.inputs[1].name)]  # type: ignore[union-attr]
    assert weight is not None
    np.testing.assert_array_equal(weight.numpy(), WEIGHT * scale)
    assert any(
        t is not None and np.array_equal(t.numpy(), BIAS * scale) for t in found.values()
    ) is (bias)


def test_a_shared_weight_stays_unchanged_for_its_other_users() -> None:
    model = attention("p = MatMul(x, w) other = MatMul(x, w)")
    other = next(v for node in model.graph for v in node.outputs if v.name == "other")
    model.graph.outputs.append(other)
    other.shape, other.type = ir.Shape(["b", "q", 8]), ir.TensorType(ir.DataType.FLOAT)
    record = applied(model)
    assert record.matches == 1
    assert record.difference is not None and record.difference < 1e-6


def test_a_scale_of_1_is_left_unchanged() -> None:
    record = applied(attention("p = MatMul(x, w)", attributes=", scale=1.0"))
    assert (record.matches, record.refusals) == (0, ())


def test_self_attention_is_left_unchanged() -> None:
    """It has many queries, so its keys are copied in any case."""
    record = applied(attention("p = MatMul(x, w)", heads_apart=False))
    assert (record.matches, record.refusals) == (0, ())


def test_a_query_that_is_not_a_product_is_refused() -> None:
    record = applied(attention("p = Tanh(z)"))
    assert record.matches == 0
    assert [(r.operator, r.matched) for r in record.refusals] == [("MultiHeadAttention", True)]
    assert "product by a weight" in record.refusals[0].reason


def test_every_cross_attention_of_a_decoder_is_rewritten(
    neutral: Bundle, odd_heads: Bundle, optimize: Optimize
) -> None:
    for bundle in (neutral, odd_heads):
        found = [r for r in optimize(bundle).manifest.passes if r.name == "query-scale"]
        assert {r.graph: r.matches for r in found} == {"encoder": 0, "decoder": 2}
        assert all(not r.refusals for r in found)


def test_attentions_that_share_a_weight_get_separate_copies() -> None:
    model = attention("p = MatMul(x, w)", attributes=", scale=0.5")
    first = next(n for n in model.graph if n.op_type == "MultiHeadAttention")
    second = ir.node(
        "MultiHeadAttention",
        first.inputs,
        {"num_heads": 2, "scale": 0.3},
        domain="com.microsoft",
    )
    model.graph.append(second)
    (other,) = second.outputs
    other.name, other.shape = "other", ir.Shape(["b", "q", 8])
    other.type = ir.TensorType(ir.DataType.FLOAT)
    model.graph.outputs.append(other)
    record = applied(model)
    assert record.matches == 2
    assert record.difference is not None and record.difference < 1e-6


def test_a_scale_of_0_is_the_default_scale() -> None:
    record = applied(attention("p = MatMul(x, w)", attributes=", scale=0.0"))
    assert record.matches == 1
    assert record.difference is not None and record.difference < 1e-6


def test_an_operator_with_a_bias_input_is_refused() -> None:
    model = attention("p = MatMul(x, w)")
    bias = ir.val("bias", ir.DataType.FLOAT, [24], const_value=ir.tensor(np.ones(24, np.float32)))
    model.graph.register_initializer(bias)
    next(n for n in model.graph if n.op_type == "MultiHeadAttention").replace_input_with(3, bias)
    record = applied(model)
    assert record.matches == 0
    assert "without bias input" in record.refusals[0].reason


def test_weights_in_16_bits_are_refused() -> None:
    half = attention("h = Cast<to=10>(x) r = MatMul(h, w) p = Cast<to=1>(r)")
    weight = half.graph.initializers["w"]
    weight.const_value = ir.tensor(WEIGHT.astype(np.float16), name="w")
    weight.type = ir.TensorType(ir.DataType.FLOAT16)
    product = next(n for n in half.graph if n.op_type == "MatMul")
    node = next(n for n in half.graph if n.op_type == "MultiHeadAttention")
    node.replace_input_with(0, product.outputs[0])
    (record,) = apply_passes(half, [QUERY_SCALE], graph="g", samples=None)
    assert record.matches == 0
    assert "float32" in record.refusals[0].reason


def test_packed_attention_is_ignored() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]> '
        "g (float[b,q,2,3,4] x) => (float[b,q,8] y) "
        "{ y = com.microsoft.MultiHeadAttention<num_heads=2>(x) }"
    )
    (record,) = apply_passes(model, [QUERY_SCALE], graph="g", samples=None)
    assert (record.matches, record.refusals) == (0, ())
