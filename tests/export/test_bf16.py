"""A bf16 bundle: no processor backend runs it, so the evaluator of the onnx package does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from dragoman.benchmarks.parity import TOLERANCES
from dragoman.reference_model import Transformer, pad
from dragoman.runtime import BackendError, load
from dragoman.runtime.manifest import Manifest

MakeModel = Callable[..., Transformer]
ExportTo = Callable[..., tuple[Path, Manifest]]
Bf16 = tuple[Transformer, Path, Manifest]


@pytest.fixture(scope="module")
def bundle(make_model: MakeModel, export_to: ExportTo) -> Bf16:
    model = make_model(seed=4, tie_target_output=False, logits_bias=True)
    return model, *export_to(model, "bf16")


def test_the_checker_accepts_both_graphs(bundle: Bf16) -> None:
    _, directory, manifest = bundle
    for file in (manifest.encoder.file, manifest.decoder.file):
        onnx.checker.check_model(directory / file, full_check=True)


def test_weights_caches_and_logits_are_bfloat16(bundle: Bf16) -> None:
    model, directory, manifest = bundle
    assert manifest.precision == "bf16"
    specs = (*manifest.encoder.outputs, *manifest.decoder.inputs, *manifest.decoder.outputs)
    for spec in specs:
        layered = spec.layer is not None or spec.role == "logits"
        assert (spec.dtype == "bfloat16") == layered, spec.name
    names = {name for name, _ in model.named_parameters()}
    for file in (manifest.encoder.file, manifest.decoder.file):
        graph = ir.load(directory / file).graph
        stored = {name: value.dtype for name, value in graph.initializers.items() if name in names}
        assert stored and set(stored.values()) == {ir.DataType.BFLOAT16}


def test_onnx_runtime_refuses_it_in_words(bundle: Bf16) -> None:
    _, directory, _ = bundle
    with pytest.raises(BackendError, match="bfloat16 cannot run on ONNX Runtime"):
        load(directory)


def test_the_graphs_agree_with_pytorch(bundle: Bf16) -> None:
    """Encoder, then all of the target at once from an empty cache."""
    model, directory, manifest = bundle
    generator = torch.Generator().manual_seed(0)
    sources = [torch.randint(0, 23, (n,), generator=generator).tolist() for n in (5, 1, 9)]
    source, mask = pad(sources, manifest.model.pad_token_id)
    target = torch.randint(0, 29, (3, 6), generator=generator)
    with torch.inference_mode():
        cross = model.encode(source, mask)
        expected = model(source, mask, target).numpy()

    encoder = ReferenceEvaluator(onnx.load(directory / manifest.encoder.file))
    keys_values = encoder.run(None, {"source": source.numpy(), "source_mask": mask.numpy()})
    for found, wanted in zip(keys_values, cross[0], strict=True):
        assert np.asarray(found).dtype == ml_dtypes.bfloat16
        rows = mask.numpy()
        assert_close(found.transpose(0, 2, 1, 3)[rows], wanted.numpy().transpose(0, 2, 1, 3)[rows])

    feeds: dict[str, Any] = {
        "token": target.numpy(),
        "position": np.zeros(3, np.int64),
        "source_mask": mask.numpy(),
        **dict(zip(encoder.output_names, keys_values, strict=True)),
    }
    for spec in manifest.decoder.inputs:
        if spec.role in ("past_key", "past_value"):
            feeds[spec.name] = np.zeros((3, 2, 8, 16), ml_dtypes.bfloat16)
    decoder = ReferenceEvaluator(onnx.load(directory / manifest.decoder.file))
    found = dict(zip(decoder.output_names, decoder.run(None, feeds), strict=True))
    assert_close(found["logits"], expected)
    assert found["next_token"].tolist() == found["logits"][:, -1].argmax(-1).tolist()
    assert found["next_log_probability"].dtype == np.float32


def assert_close(found: Any, expected: Any) -> None:
    """Within the tolerance of parity's first level."""
    largest = max(1.0, float(np.abs(expected).max()))
    difference = float(np.abs(np.asarray(found, np.float32) - expected).max())
    assert 0 < difference <= TOLERANCES["bf16"] * largest
