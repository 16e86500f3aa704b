"""Models with random weights, exported by an exporter in an opset."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

ModelAndInputs = tuple[nn.Module, dict[str, Tensor]]
"""A model and the inputs to trace it with, by name."""


@dataclass(frozen=True)
class Counts:
    """The numbers of operators of a model, independent of their form in the graph."""

    attentions: int
    norms: int
    gelus: int


@dataclass(frozen=True)
class ExportedModel:
    """A model, an exporter and an opset.

    Attributes:
        make: creates the model, as initialized by its library
        counts: numbers of operators, counted in the model's source code
        family: the `model_type` for `onnxruntime.transformers.optimizer`
        dynamo: whether to export with torch.export instead of TorchScript
        dynamic: whether batch and lengths are dynamic axes
    """

    name: str
    make: Callable[[], ModelAndInputs]
    counts: Counts
    family: str
    opset: int
    dynamo: bool
    dynamic: bool = True

    def export(self) -> ir.Model:
        """Return the graph, read again at every call."""
        return ir.from_proto(onnx.load_from_string(serialized(self)))

    def inputs(self) -> dict[str, NDArray[np.generic]]:
        """Return the traced inputs; the mask of the last row ends early."""
        return {name: value.numpy() for name, value in _with_random_weights(self)[1].items()}

    def expected(self) -> list[NDArray[np.generic]]:
        """Return PyTorch's outputs for these inputs."""
        module, inputs = _with_random_weights(self)
        with torch.no_grad():
            outputs = module(*inputs.values())
        return [value.numpy() for value in torch.utils._pytree.tree_leaves(outputs)]


def _with_random_weights(model: ExportedModel) -> ModelAndInputs:
    torch.manual_seed(0)
    module, inputs = model.make()
    randomize(module)
    return module.eval(), inputs


def randomize(module: nn.Module) -> None:
    """Give a model random weights.

    Initial weights are too small for a wrong attention to change the output, and initial gains of
    one and biases of zero would hide missing ones.
    """
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                parameter.normal_(std=1.5 / math.sqrt(parameter.shape[-1]))


@cache
def serialized(model: ExportedModel) -> bytes:
    """Return the ONNX file; every model is exported once per process."""
    module, inputs = _with_random_weights(model)
    file: Any = io.BytesIO()
    settings: dict[str, Any] = {"input_names": list(inputs), "opset_version": model.opset}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not model.dynamo:
            axes = {name: _axes(name, value) for name, value in inputs.items()}
            settings["dynamic_axes"] = axes if model.dynamic else {}
            torch.onnx.export(module, tuple(inputs.values()), file, dynamo=False, **settings)
        else:
            dims = {name: torch.export.Dim(name) for name in ("batch", "source", "target", "past")}
            shapes: Any = tuple(
                {axis: dims[dim] for axis, dim in _axes(name, value).items()}
                for name, value in inputs.items()
            )
            # Past keys and values are a variadic argument, so their shapes form a nested tuple.
            variadic = sum(name.startswith("past_") for name in inputs)
            if variadic:
                shapes = (*shapes[:-variadic], shapes[-variadic:])
            settings["dynamic_shapes"] = shapes if model.dynamic else None
            program = torch.onnx.export(
                module, tuple(inputs.values()), dynamo=True, verbose=False, **settings
            )
            assert program is not None
            program.save(file)
    contents: bytes = file.getvalue()
    return contents


def _axes(name: str, value: Tensor) -> dict[int, str]:
    """Return the dynamic axes of an input."""
    length = {"ids": "source", "mask": "source", "hidden": "source", "target": "target"}
    if name.startswith("past_"):
        return {0: "batch", 2: "past" if "self" in name else "source"}
    axes = {0: "batch"}
    if value.ndim > 1 and name in length and value.shape[1] > 1:
        axes[1] = length[name]
    return axes
