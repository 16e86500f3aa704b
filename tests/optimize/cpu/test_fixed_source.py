"""Cross-attention over a source of fixed length as products of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from numpy.typing import NDArray

from dragoman.optimize.cpu.fixed_source import FIXED_SOURCE
from dragoman.optimize.pipeline import apply_passes
from dragoman.optimize.running import run as run_graph
from dragoman.runtime.format.manifest import PassRecord

HEADS, SIZE, LENGTH = 3, 5, 11
WIDTH = HEADS * SIZE


def attention(
    *,
    keys: str = f"float[g,{HEADS},{LENGTH},{SIZE}]",
    attributes: str = ", scale=1.0, mask_filter_value=-1e38",
    mask: str = "m = Cast<to=6>(mask)",
    inputs: str = "p, k, v, , m",
) -> ir.Model:
    return ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]> '
        f"f (float[b,q,{WIDTH}] x, {keys} k, {keys} v, bool[g,{LENGTH}] mask) => "
        f"(float[b,q,{WIDTH}] y) <int64[2] rest = {{-1, {WIDTH}}}, float[{3 * WIDTH}] c = "
        f"{{{', '.join(['0'] * 3 * WIDTH)}}}> {{ "
        f"g = Shape<start=0, end=1>(mask) by_source = Concat<axis=0>(g, rest) {mask} "
        "p = Reshape(x, by_source) "
        f"a = com.microsoft.MultiHeadAttention<num_heads={HEADS}{attributes}>({inputs}) "
        "shape = Shape(x) y = Reshape(a, shape) }"
    )


def run(model: ir.Model, given: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
    return run_graph(model, given)["y"].astype(np.float32, copy=False)


def samples(sources: int, width: int, queries: int) -> dict[str, NDArray[Any]]:
    """Sources of 1 to 11 positions."""
    random, keys = np.random.default_rng(0), (sources, HEADS, LENGTH, SIZE)
    lengths = random.integers(1, LENGTH + 1, (sources, 1))
    lengths[-1], lengths[0] = 1, LENGTH
    return {
        "x": random.standard_normal((sources * width, queries, WIDTH)).astype(np.float32),
        "k": random.standard_normal(keys).astype(np.float32),
        "v": random.standard_normal(keys).astype(np.float32),
        "mask": np.arange(LENGTH) < lengths,
    }


def applied(model: ir.Model) -> PassRecord:
    (record,) = apply_passes(model, [FIXED_SOURCE], graph="g", samples=samples(2, 3, 2))
    return record


@pytest.mark.parametrize("sources", [1, 7])
@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize("queries", [1, 4])
def test_outputs_are_those_of_pytorch(sources: int, width: int, queries: int) -> None:
    model = attention()
    record = applied(model)
    assert (record.matches, record.refusals) == (1, ())
    assert "MultiHeadAttention" not in {node.op_type for node in model.graph}
    given = samples(sources, width, queries)
    found = run(model, given)
    heads = torch.from_numpy(given["x"]).view(-1, queries, HEADS, SIZE).transpose(1, 2)
    key, value, mask = (
        torch.from_numpy(given[name]).repeat_interleave(width, 0) for name in ("k", "v", "mask")
    )
    expected = torch.nn.functional.scaled_dot_product_attention(
        heads, key, value, mask[:, None, None], scale=1.0
    )
    expected = expected.transpose(1, 2).reshape(-1, queries, WIDTH)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


def test_rows_do_not_depend_on_others() -> None:
    """Bit by bit: of other sources, and of other beams."""
    model = attention()
    applied(model)
    given = samples(7, 5, 1)
    found = run(model, given)
    for source, beam in ((0, 0), (3, 4), (6, 2)):
        alone = {name: value[source : source + 1] for name, value in given.items()}
        row = source * 5 + beam
        alone["x"] = given["x"][row : row + 1]
        np.testing.assert_array_equal(run(model, alone)[0], found[row])


def test_the_bias_of_padding_is_that_of_the_operator() -> None:
    """By default -10000, which is too little to mask a key that is much more alike."""
    given = samples(2, 3, 2)
    given["x"] *= 1e5
    expected = run(attention(attributes=", scale=1.0"), given)
    model = attention(attributes=", scale=1.0")
    assert applied(model).matches == 1
    np.testing.assert_allclose(run(model, given), expected, atol=1e-3)
    other = attention()
    assert applied(other).matches == 1
    assert np.abs(run(other, given) - expected).max() > 0.1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"attributes": ""}, "a scale of 1"),
        ({"attributes": ", scale=0.5"}, "a scale of 1"),
        ({"attributes": ", scale=1.0, unidirectional=1"}, "no attributes but"),
        ({"mask": "i = Cast<to=6>(mask) m = Identity(i)"}, "a bool mask [G, S]"),
        ({"inputs": "p, k, v"}, "a bool mask [G, S]"),
        ({"inputs": "p, k, v, c, m"}, "a bool mask [G, S]"),
        ({"keys": f"float16[g,{HEADS},{LENGTH},{SIZE}]"}, "float32 keys and values"),
    ],
)
def test_others_are_refused(options: dict[str, str], reason: str) -> None:
    refused(attention(**options), reason)


def test_queries_that_are_grouped_otherwise_are_refused() -> None:
    model = attention()
    shape = ir.tensor(np.array([2, -1, WIDTH]), name="fixed")
    constant = ir.val("fixed", ir.DataType.INT64, [3], const_value=shape)
    model.graph.register_initializer(constant)
    reshape = next(node for node in model.graph if node.op_type == "Reshape")
    reshape.replace_input_with(1, constant)
    refused(model, "grouped by source")


def test_weights_that_are_read_are_refused() -> None:
    """As in the graph that aligns words; its scores are another output."""
    model = attention()
    node = next(node for node in model.graph if node.op_type == "MultiHeadAttention")
    node.resize_outputs(4)
    scores = node.outputs[3]
    scores.name, scores.shape = "scores", ir.Shape(["g", HEADS, "t", LENGTH])
    scores.type = ir.TensorType(ir.DataType.FLOAT)
    model.graph.outputs.append(scores)
    refused(model, "no use of other outputs")


def refused(model: ir.Model, reason: str) -> None:
    (record,) = apply_passes(model, [FIXED_SOURCE], graph="g", samples=None)
    assert record.matches == 0
    assert [(r.operator, reason in r.reason) for r in record.refusals] == [
        ("MultiHeadAttention", True)
    ]


@pytest.mark.parametrize(
    "keys",
    [f"float[g,{HEADS},s,{SIZE}]", f"float[g,{LENGTH},{WIDTH}]"],
    ids=["any length", "heads together"],
)
def test_other_sources_are_left_unchanged(keys: str) -> None:
    (record,) = apply_passes(attention(keys=keys), [FIXED_SOURCE], graph="g", samples=None)
    assert (record.matches, record.refusals) == (0, ())
