"""The suppression of tokens must not be fused into the logits, which are an output, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest
import torch

from dragoman.export import export_bundle
from dragoman.optimize.graph_values import is_weight
from dragoman.reference_model import GenerationConfig, ModelConfig, Transformer
from dragoman.runtime import Bundle, load, read_bundle

Optimize = Callable[..., Bundle]
SUPPRESSED = (0, 7, 1500)


@pytest.fixture(scope="module")
def suppressing(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    torch.manual_seed(0)
    config = ModelConfig(
        source_vocab_size=50, target_vocab_size=2100, encoder_layers=1, decoder_layers=1,
        d_model=64, num_heads=4, d_ff=96, max_source_positions=24, max_target_positions=24,
    )  # fmt: skip
    model = Transformer(config, GenerationConfig(suppressed_token_ids=SUPPRESSED)).eval()
    directory = tmp_path_factory.mktemp("suppressing")
    export_bundle(model, directory, name="random")
    return read_bundle(directory)


@pytest.mark.parametrize(
    ("precision", "target"),
    [("fp32", "cpu"), ("int8", "cpu"), ("int4", "cpu"), ("int8", "neutral"), ("fp16", "neutral")],
)
def test_one_product_gives_the_logits(
    precision: str, target: str, suppressing: Bundle, optimize: Optimize
) -> None:
    bundle = optimize(suppressing, precision, target=target)
    graph = ir.load(Path(bundle.path(bundle.manifest.graphs["decoder"].file))).graph
    wide = [
        node
        for node in graph
        if any(is_weight(v, 2) and 2100 in (v.shape or ()) for v in node.inputs if v is not None)
        and ("MatMul" in node.op_type or "Gemm" in node.op_type)
    ]
    assert len(wide) <= 1

    if precision != "fp16":  # ONNX Runtime lacks some fp16 kernels
        sources = [[3, 4, 5], [6], [9, 8, 7, 11, 3]]
        tokens = [t for r in load(bundle.directory).generate(sources) for t in r.tokens]
        assert tokens
        assert not set(tokens) & set(SUPPRESSED)
