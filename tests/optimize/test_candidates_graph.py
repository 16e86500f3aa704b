"""The graph of candidates selects what NumPy selects, and backends of a GPU find it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from dragoman.onnx_graphs.optional_graphs import candidates_graph, candidates_spec
from dragoman.optimize.running import InMemorySession
from dragoman.optimize.tensorrt.engine_bundle import pinned_bundle
from dragoman.runtime import Bundle
from dragoman.runtime.format.contract import DataType, GraphSpec, TensorSpec

Optimize = Callable[..., Bundle]


def decoder(vocabulary: int, dtype: DataType) -> GraphSpec:
    """As much of one as candidates need."""
    logits = TensorSpec("logits", "logits", dtype, ("batch", "query", vocabulary))
    return GraphSpec("decoder.onnx", (), (logits,))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("rows", "queries", "vocabulary", "suppressed"),
    [
        *((1, 1, 5, 0), (7, 1, 32, 0), (7, 3, 33, 0), (3, 2, 2100, 0)),
        *((1, 1, 5, 2), (7, 3, 33, 9), (3, 2, 2100, 90), (3, 1, 6000, 5000), (2, 1, 5020, 5000)),
    ],
)
def test_the_best_tokens_and_their_log_probabilities(
    rows: int, queries: int, vocabulary: int, suppressed: int, dtype: DataType
) -> None:
    """Suppressed tokens are no candidates, but count in the log-probabilities of others."""
    generator = np.random.default_rng(vocabulary)
    never = generator.choice(vocabulary, suppressed, replace=False)
    spec = candidates_spec(decoder(vocabulary, dtype), never.tolist())
    model = candidates_graph(spec, never.tolist())
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    logits = (5 * generator.standard_normal((rows, queries, vocabulary))).astype(dtype)
    session = InMemorySession(model, onnxruntime.SessionOptions())
    found = session.run({"logits": logits})
    last = logits[:, -1].astype(np.float64)
    expected = last - np.log(np.exp(last).sum(1, keepdims=True))
    expected[:, never] = -np.inf
    count = min(32, vocabulary - suppressed)
    assert [found[t.name].dtype for t in spec.outputs] == [np.int64, np.float32]
    tokens = found["candidate_token"].astype(np.int64)
    log_probabilities = found["candidate_log_probability"].astype(np.float32)
    assert tokens.shape == log_probabilities.shape == (rows, count)
    np.testing.assert_allclose(log_probabilities, -np.sort(-expected, axis=1)[:, :count], atol=1e-5)
    chosen = np.take_along_axis(expected, tokens, 1)
    np.testing.assert_allclose(log_probabilities, chosen, atol=1e-5)
    assert all(len(set(row)) == count for row in tokens.tolist())


def test_suppressed_tokens_change_no_log_probability() -> None:
    """Those of the tokens that remain are the same bits, in the same order."""
    generator = np.random.default_rng(1)
    logits = (5 * generator.standard_normal((3, 1, 2100))).astype(np.float32)
    never = np.argsort(-logits[0, 0])[:20:2].tolist()
    free, masked = (
        InMemorySession(
            candidates_graph(candidates_spec(decoder(2100, "float32"), tokens), tokens),
            onnxruntime.SessionOptions(),
        ).run({"logits": logits})
        for tokens in ((), never)
    )
    for row in range(3):
        kept = ~np.isin(free["candidate_token"][row], never)
        for name in ("candidate_token", "candidate_log_probability"):
            expected = free[name][row][kept]
            np.testing.assert_array_equal(masked[name][row][: len(expected)], expected)


def test_bundles_for_a_gpu_have_it_in_the_format_of_their_logits(
    neutral: Bundle, optimize: Optimize, tmp_path: Path
) -> None:
    formats = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "float32"}
    bundles = {"fp32": neutral}
    bundles |= {p: optimize(neutral, p, "neutral") for p in formats if p != "fp32"}
    for precision, dtype in formats.items():
        manifest = bundles[precision].manifest
        (logits,) = manifest.graphs["candidates"].inputs
        assert logits == manifest.graphs["decoder"].output("logits")
        assert logits.dtype == dtype
        assert not any(record.graph == "candidates" for record in manifest.passes)
    for_engines = optimize(neutral, "int8", "tensorrt-rtx")
    pinned = pinned_bundle(for_engines, tmp_path, 9)
    (logits,) = pinned.manifest.graphs["candidates"].inputs
    assert (logits.dtype, logits.shape) == ("float16", ("batch", 1, 2100))
    onnx.checker.check_model(pinned.graph_path("candidates"), full_check=True)
    assert "candidates" not in optimize(neutral).manifest.graphs
