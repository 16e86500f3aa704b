"""A T5 whose residual stream exceeds the range of 16 bits, like those of published models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch

from dragoman.export import export_bundle
from dragoman.optimize.emulation import emulated_bundle
from dragoman.optimize.precision.half import Half
from dragoman.optimize.running import run, samples_for_graph
from dragoman.reference_model import ModelConfig, Transformer
from dragoman.runtime import Bundle, Model, load, read_bundle
from dragoman.runtime.backends import open_backend
from dragoman.runtime.format.manifest import Precision
from dragoman.verification.inputs.parity_inputs import random_inputs
from dragoman.verification.parity import check_parity

Optimize = Callable[..., Bundle]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Transformer, Bundle]:
    config = ModelConfig(
        source_vocab_size=97,
        target_vocab_size=97,
        encoder_layers=2,
        decoder_layers=2,
        d_model=32,
        num_heads=3,
        d_head=8,
        d_ff=48,
        activation="gelu_tanh",
        gated_feed_forward=True,
        norm_order="pre",
        norm="rms",
        norm_bias=False,
        query_bias=False,
        key_bias=False,
        value_bias=False,
        attention_output_bias=False,
        feed_forward_bias=False,
        tie_source_target=True,
        tie_target_output=False,
        scale_embedding=False,
        positions="relative",
        relative_buckets=8,
        relative_max_distance=12,
        max_source_positions=40,
        max_target_positions=24,
        dropout=0.0,
    )
    torch.manual_seed(2)
    model = Transformer(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("gain", "relative_positions.table")):
                parameter.normal_()
            elif "layers.0.feed_forward.outer" in name:
                parameter.mul_(1e4)
            elif "layers.0.feed_forward.inner" in name:
                parameter.mul_(1e3)
            elif "layers.1" in name and name.endswith("output.weight"):
                parameter.mul_(3e5)  # what comes later counts, too
    directory = tmp_path_factory.mktemp("large")
    export_bundle(model, directory, name="random")
    return model, read_bundle(directory)


def test_the_residual_stream_overflows(large: tuple[Transformer, Bundle]) -> None:
    """Computed in 16 bits only, the outputs would be wrong or NaN."""
    model, bundle = large
    seen: list[torch.Tensor] = []
    hook = model.decoder.norm.register_forward_pre_hook(lambda _, x: seen.append(x[0].detach()))
    model(torch.tensor([[5, 7, 9]]), torch.ones(1, 3, dtype=torch.bool), torch.tensor([[1, 4]]))
    hook.remove()
    assert float(seen[0].abs().max()) > 10 * float(np.finfo(np.float16).max)
    spec = bundle.manifest.graphs["encoder"]
    graph = ir.load(bundle.path(spec.file))
    samples = samples_for_graph(spec, bundle.manifest.model)
    before = run(graph, samples)
    Half(ir.DataType.FLOAT16, {}, frozenset(), 1.0).apply(graph)
    after = run(graph, samples)
    assert any(
        not np.allclose(after[name].astype(np.float32), before[name], atol=0.1) for name in before
    )


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_parity_holds_with_large_values_in_fp32(
    large: tuple[Transformer, Bundle], precision: Precision, optimize: Optimize, tmp_path: Path
) -> None:
    model, neutral = large
    bundle = optimize(neutral, precision, target="neutral")
    copy = emulated_bundle(bundle, tmp_path)
    emulated = Model(copy, open_backend(copy, None, threads=1))
    result = check_parity(
        emulated, model, random_inputs(model, 12), backend="onnxruntime", bundle=bundle
    )
    assert result.passed, result
    wide = {
        graph: [
            node.op_type
            for node in ir.load(bundle.path(f"{graph}.onnx")).graph
            if node.outputs[0].dtype == ir.DataType.FLOAT and node.op_type != "Cast"
        ]
        for graph in ("encoder", "decoder")
    }
    if precision == "bf16":
        assert wide == {"encoder": [], "decoder": ["LogSoftmax", "GatherElements", "Squeeze"]}
        return
    # From the first large product on, sums and the norms that read them stay in fp32.
    assert wide["encoder"].count("RMSNormalization") == 3
    assert wide["decoder"].count("RMSNormalization") == 4
    for found in wide.values():
        assert "Attention" not in found and "TensorScatter" not in found
        assert found.count("MatMul") < 6


def test_int8_and_int4_of_the_neutral_target(
    large: tuple[Transformer, Bundle], optimize: Optimize
) -> None:
    _, neutral = large
    precisions: tuple[Precision, ...] = ("int8", "int4")
    for precision in precisions:
        bundle = optimize(neutral, precision, target="neutral")
        results = load(bundle.directory, threads=1).generate([[5, 6, 7], [9]])
        assert all(result.error is None for result in results)
