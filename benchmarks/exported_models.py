"""Whole models that are not ours, with random weights, as the exporters people use write them."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import onnx
import onnx_ir as ir
import torch
from torch import Tensor, nn

WIDTH, HEADS, VOCAB, LAYERS = 32, 4, 61, 2


@dataclass(frozen=True)
class Counts:
    """Operators of a model, whatever its graph spells them as."""

    attentions: int
    layer_norms: int
    rms_norms: int
    gelus: int


@dataclass(frozen=True)
class ExportedModel:
    """A model, an exporter and an opset.

    Attributes:
        family: what `onnxruntime.transformers.optimizer` would be told it is
        counts: what the model holds, counted in its source
    """

    name: str
    make: Callable[[], tuple[nn.Module, tuple[Tensor, ...], tuple[str, ...]]]
    counts: Counts
    opset: int
    dynamo: bool
    family: str

    def export(self) -> ir.Model:
        """A fresh graph."""
        return ir.from_proto(onnx.load_from_string(self.serialized()))

    def serialized(self) -> bytes:
        """The ONNX file; exported once."""
        return _exported(self)


@cache
def _exported(model: ExportedModel) -> bytes:
    torch.manual_seed(0)
    module, inputs, names = model.make()
    # Weights of one or zero would hide a gain or bias that went missing.
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    module.eval()
    axes = {
        name: {i: f"{'batch' if i == 0 else name + str(i)}" for i in range(value.ndim)}
        for name, value in zip(names, inputs, strict=True)
        if not value.is_floating_point()
    }
    return b""
