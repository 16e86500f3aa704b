"""Exporting changes nothing about the model that is exported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman import DragomanError
from dragoman.export import export_bundle
from dragoman.export.graphs import exporting, onnx_attention
from dragoman.reference_model import Transformer, scaled_dot_product_attention
from dragoman.reference_model.attention import MultiHeadAttention
from dragoman.runtime.manifest import Manifest, Precision

MakeModel = Callable[..., Transformer]


def everything(model: Transformer) -> dict[str, Any]:
    """All of a model that an export could leave changed, and copies of its weights."""
    return {
        "weights": {
            n: (id(p), p.dtype, p.detach().clone().view(torch.int32).tolist(), p.requires_grad)
            for n, p in model.named_parameters()
        },
        "tables": {n: (t.dtype, t.tolist()) for n, t in model.named_buffers()},
        "modes": [module.training for module in model.modules()],
        "attend": [m.attend for m in model.modules() if isinstance(m, MultiHeadAttention)],
    }


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_model_in_training_comes_back_as_it_was(
    make_model: MakeModel, tmp_path: Path, precision: Precision
) -> None:
    model = make_model(dropout=0.1).train()
    model.decoder.eval()
    before = everything(model)
    export_bundle(model, tmp_path, name="test", precision=precision)
    after = everything(model)
    assert after == before
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert set(after["attend"]) == {scaled_dot_product_attention}


def test_a_converted_export_leaves_fp32_weights(
    make_model: MakeModel, fp16_bundle: tuple[Transformer, Path, Manifest]
) -> None:
    model, _, _ = fp16_bundle
    fresh = make_model(seed=3, norm_order="pre", activation="gelu")
    for (name, exported), (_, expected) in zip(
        model.named_parameters(), fresh.named_parameters(), strict=True
    ):
        assert exported.dtype == torch.float32
        assert torch.equal(exported, expected), name


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_failing_export_leaves_the_model_as_it_was(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: Precision
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the exporter broke down")

    monkeypatch.setattr(torch.onnx, "export", fail)
    model = make_model(dropout=0.1).train()
    before = everything(model)
    with pytest.raises(RuntimeError, match="broke down"):
        export_bundle(model, tmp_path, name="test", precision=precision)
    assert everything(model) == before
    assert list(tmp_path.iterdir()) == []


@torch.no_grad()
def test_a_refused_export_leaves_the_model_as_it_was(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model()
    model.output.weight[3, 4] = 1e6
    before = everything(model)
    with pytest.raises(DragomanError):
        export_bundle(model, tmp_path, name="test", precision="fp16")
    assert everything(model) == before


def test_attention_is_onnx_only_within_the_block(make_model: MakeModel) -> None:
    model = make_model()

    def attends() -> set[object]:
        return {m.attend for m in model.modules() if isinstance(m, MultiHeadAttention)}

    with exporting(model):
        assert attends() == {onnx_attention}
    assert attends() == {scaled_dot_product_attention}
    with pytest.raises(KeyboardInterrupt), exporting(model):
        raise KeyboardInterrupt
    assert attends() == {scaled_dot_product_attention}
