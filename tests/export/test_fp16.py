"""An fp16 bundle: its number formats, and that ONNX Runtime's processor backend agrees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch

from dragoman.benchmarks.parity import TOLERANCES, check_parity, random_inputs
from dragoman.reference_model import Transformer, greedy_uncached, pad
from dragoman.runtime import load
from dragoman.runtime.manifest import Manifest

Fp16 = tuple[Transformer, Path, Manifest]


def test_weights_and_caches_are_fp16_and_the_rest_is_not(fp16_bundle: Fp16) -> None:
    model, directory, manifest = fp16_bundle
    assert manifest.precision == "fp16"
    halves = {"cross_key", "cross_value", "past_key", "past_value", "present_key", "present_value"}
    for graph in (manifest.encoder, manifest.decoder):
        for spec in (*graph.inputs, *graph.outputs):
            assert (spec.dtype == "float16") == (spec.role in halves | {"logits"}), spec.name
    (log_probability,) = (s for s in manifest.decoder.outputs if s.role == "next_log_probability")
    assert log_probability.dtype == "float32"
    names = {name for name, _ in model.named_parameters()}
    for file in (manifest.encoder.file, manifest.decoder.file):
        for name, value in ir.load(directory / file).graph.initializers.items():
            if name in names:
                assert value.dtype == ir.DataType.FLOAT16, name


def test_weights_take_half_the_space(fp16_bundle: Fp16) -> None:
    model, _, manifest = fp16_bundle
    (weights,) = (file for file in manifest.files if file.path == "weights.bin")
    large = [p for p in model.parameters() if p.numel() * 2 > 1024]
    tables = (16 + 12) * 32 * 2
    assert weights.size >= 2 * sum(p.numel() for p in large)
    assert weights.size <= 1.02 * (2 * sum(p.numel() for p in model.parameters()) + tables)


def test_teacher_forced_logits_agree_with_pytorch(fp16_bundle: Fp16) -> None:
    model, directory, manifest = fp16_bundle
    backend = load(directory, threads=1).backend
    generator = torch.Generator().manual_seed(0)
    sources = [
        torch.randint(0, 23, (n,), generator=generator).tolist() for n in (5, 1, 16, 9, 2, 12, 3)
    ]
    source, mask = pad(sources, manifest.model.pad_token_id)
    target = torch.randint(0, 29, (7, 12), generator=generator)
    with torch.inference_mode():
        expected = model(source, mask, target).numpy()
    found = backend.score(source.numpy(), mask.numpy(), target.numpy())
    assert found.dtype == np.float16
    largest = max(1.0, float(np.abs(expected).max()))
    difference = float(np.abs(found.astype(np.float32) - expected).max())
    assert 0 < difference <= TOLERANCES["fp16"] * largest


def test_parity_holds(fp16_bundle: Fp16) -> None:
    model, directory, _ = fp16_bundle
    inputs = random_inputs(model, 16)
    outputs = greedy_uncached(model, inputs.sources, 12)
    assert len({tuple(output) for output in outputs}) > 4
    parity = check_parity(load(directory, threads=1), model, inputs, backend="onnxruntime")
    assert parity.passed
    assert all(tensor.tolerance == TOLERANCES["fp16"] for tensor in parity.tensors)
    assert all(tensor.difference > 0 for tensor in parity.tensors)
