"""Exporting changes nothing about the model that is exported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.export import export_bundle
from dragoman.export.graphs import exporting, onnx_attention
from dragoman.reference_model import Transformer, scaled_dot_product_attention
from dragoman.reference_model.attention import MultiHeadAttention

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
        "reshape": [m.reshape for m in model.modules() if isinstance(m, MultiHeadAttention)],
    }


def test_a_model_in_training_mode_is_restored(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model(dropout=0.1).train()
    model.decoder.eval()
    before = everything(model)
    export_bundle(model, tmp_path, name="test")
    after = everything(model)
    assert after == before
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert set(after["attend"]) == {scaled_dot_product_attention}
    assert set(after["reshape"]) == {torch.reshape}


def test_a_failing_export_leaves_the_model_as_it_was(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the exporter broke down")

    monkeypatch.setattr(torch.onnx, "export", fail)
    model = make_model(dropout=0.1).train()
    before = everything(model)
    with pytest.raises(RuntimeError, match="broke down"):
        export_bundle(model, tmp_path, name="test")
    assert everything(model) == before
    assert list(tmp_path.iterdir()) == []


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


def test_dropout_takes_no_part_in_graphs(make_model: MakeModel, tmp_path: Path) -> None:
    kinds = ("dropout", "attention_dropout", "feed_forward_dropout")
    for name, share in (("without", 0.0), ("with", 0.3)):
        (tmp_path / name).mkdir()
        export_bundle(make_model(**dict.fromkeys(kinds, share)), tmp_path / name, name="test")
    graphs = [file.name for file in (tmp_path / "with").glob("*.onnx")]
    assert "decoder.onnx" in graphs
    for graph in graphs:
        one, other = (tmp_path / name / graph for name in ("without", "with"))
        assert one.read_bytes() == other.read_bytes()
