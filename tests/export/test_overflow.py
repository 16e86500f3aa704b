"""Weights that a precision cannot hold are named, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dragoman import DragomanError
from dragoman.export import export_bundle
from dragoman.reference_model import Transformer

MakeModel = Callable[..., Transformer]

INNER = "encoder.layers.0.feed_forward.inner.weight"
GAIN = "decoder.layers.0.cross_attention_residual.norm.gain"


@torch.no_grad()
def test_all_weights_beyond_fp16_are_named(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model()
    parameters = dict(model.named_parameters())
    parameters[INNER][3, 2] = 65520.0  # the least that rounds to infinity
    parameters[GAIN][0] = -1e30
    with pytest.raises(DragomanError) as caught:
        export_bundle(model, tmp_path, name="test", precision="fp16")
    assert str(caught.value) == f"weights overflow in fp16: {INNER}, {GAIN}; use bf16 or fp32"
    assert list(tmp_path.iterdir()) == []


@torch.no_grad()
def test_beyond_bf16_it_does_not_say_to_use_bf16(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model()
    dict(model.named_parameters())[INNER][0, 0] = torch.finfo(torch.float32).max
    with pytest.raises(DragomanError) as caught:
        export_bundle(model, tmp_path, name="test", precision="bf16")
    assert str(caught.value) == f"weights overflow in bf16: {INNER}; use fp32"
