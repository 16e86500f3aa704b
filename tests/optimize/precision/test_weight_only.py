"""Weight-only quantization: standard operators, weights stored once, results close to fp32."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from dragoman.runtime import Bundle, load
from dragoman.runtime.format.manifest import Precision

Optimize = Callable[..., Bundle]


@pytest.fixture(scope="module", params=["int8", "int4"])
def bundle(request: pytest.FixtureRequest, neutral: Bundle, optimize: Optimize) -> Bundle:
    return optimize(neutral, request.param, target="neutral")


def test_only_standard_operators(bundle: Bundle) -> None:
    for graph in (bundle.manifest.graphs["encoder"], bundle.manifest.graphs["decoder"]):
        model = ir.load(bundle.path(graph.file))
        assert {node.domain for node in model.graph} == {""}
        assert set(model.opset_imports) == {""}
        onnx.checker.check_model(bundle.path(graph.file), full_check=True)


def test_every_product_reads_integers(bundle: Bundle) -> None:
    model = ir.load(bundle.path(bundle.manifest.graphs["decoder"].file))
    products = [node for node in model.graph if node.op_type == "MatMul"]
    assert len(products) == 2 * 8 + 1
    found: Counter[str] = Counter()
    for node in products:
        source = node.inputs[1].producer() if node.inputs[1] is not None else None
        if source is not None and source.op_type == "Transpose" and source.inputs[0] is not None:
            source = source.inputs[0].producer()
        assert source is not None and source.op_type == "DequantizeLinear"
        assert source.inputs[0] is not None
        found[str(source.inputs[0].dtype)] += 1
    # Embeddings cannot be gathered in 4 bits: the tied table has 8.
    precision: Precision = bundle.manifest.precision
    assert found == ({"INT8": 17} if precision == "int8" else {"INT4": 16, "INT8": 1})


def test_the_table_is_stored_once(bundle: Bundle) -> None:
    for graph in ("encoder", "decoder"):
        model = ir.load(bundle.graph_path(graph))
        tables = [
            v for v in model.graph.initializers.values() if ".tokens.weight" in (v.name or "")
        ]
        assert sorted((str(v.dtype), v.shape) for v in tables) == [
            ("FLOAT", ir.Shape([2100])),
            ("INT8", ir.Shape([2100, 64])),
        ]
    assert sum(f.size for f in bundle.manifest.files if f.path == "weights.bin") < 480_000


def test_logits_are_close_to_those_of_fp32(bundle: Bundle, neutral: Bundle) -> None:
    generator = np.random.default_rng(0)
    source = generator.integers(0, 2100, (3, 9))
    mask = np.arange(9) < np.array([[9], [1], [4]])
    target = generator.integers(0, 2100, (3, 5))
    expected, found = (
        load(b.directory, threads=1).backend.score(source, mask, target) for b in (neutral, bundle)
    )
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert 0 < error < {"int8": 0.03, "int4": 0.2}[bundle.manifest.precision]
