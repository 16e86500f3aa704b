"""PyTorch -> ONNX: graphs with the names and dynamic axes of the contract."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.export import Dim

from dragoman.reference_model import EncoderModel, LanguageModel, ReferenceModel
from dragoman.runtime.format.contract import CONTRACTS, GraphName, GraphSpec, TensorSpec
from dragoman.runtime.format.neutral_graphs import kind_of, neutral_graph

from .graphs import (
    OPSET,
    DecoderStepGraph,
    EncoderGraph,
    EncoderModelGraph,
    LanguageModelStepGraph,
    exporting,
)
from .model_description import audio_features, head, model_spec
from .simplify import simplify

GRAPH_FILES: dict[GraphName, str] = {"encoder": "encoder.onnx", "decoder": "decoder.onnx"}

TRACED_SIZES = {"batch": 4, "source_batch": 2, "source": 5, "query": 3, "read": 6, "capacity": 7}
"""Sizes of the dynamic axes while a graph is traced: distinct, and not 1, so that none is
specialized to a constant; several rows for each source."""

TORCH_TYPES = {"int64": torch.long, "bool": torch.bool, "float32": torch.float32}


@dataclass(frozen=True)
class ExportedGraph:
    """A graph, and its specification in the contract."""

    model: ir.Model
    spec: GraphSpec


def graph_names(model: ReferenceModel) -> list[GraphName]:
    """The graphs that a model is exported to."""
    return [name for name in GRAPH_FILES if name in CONTRACTS[kind_of(model_spec(model.config))]]


def graph_spec(model: ReferenceModel, name: GraphName) -> GraphSpec:
    """What the contract says of a graph of this model."""
    config = model.config
    spec, audio = model_spec(config), audio_features(config)
    return neutral_graph(name, GRAPH_FILES[name], spec, audio, head(config))


def export_graph(model: ReferenceModel, name: GraphName) -> ExportedGraph:
    """Export a graph of `graph_names`; its module is in `graphs`.

    Names, shapes, dynamic axes and types of inputs and outputs are those of the contract.
    """
    spec = graph_spec(model, name)
    graph = _module(model, name)
    arguments = _arguments([_example(tensor) for tensor in spec.inputs], spec)
    dynamic_shapes = _arguments([_dynamic_axes(tensor) for tensor in spec.inputs], spec)
    with exporting(model), torch.no_grad(), _quiet():
        program = torch.onnx.export(
            graph.eval(),  # and the model within it: `exporting` restores its mode
            arguments,
            dynamo=True,
            opset_version=OPSET,
            dynamic_shapes=dynamic_shapes,
            input_names=[tensor.name for tensor in spec.inputs],
            output_names=[tensor.name for tensor in spec.outputs],
            optimize=False,
            verbose=False,
        )
    assert program is not None  # None only when exporting to a file
    exported = program.model
    simplify(exported, model)
    return ExportedGraph(exported, spec)


def _module(model: ReferenceModel, name: GraphName) -> nn.Module:
    if isinstance(model, EncoderModel):
        return EncoderModelGraph(model)
    if isinstance(model, LanguageModel):
        return LanguageModelStepGraph(model)
    return EncoderGraph(model) if name == "encoder" else DecoderStepGraph(model)


def _example(tensor: TensorSpec) -> Tensor:
    """A tensor to trace with. Each input needs its own, since the exporter merges inputs that are
    the same tensor.
    """
    shape = [TRACED_SIZES[d] if isinstance(d, str) else d for d in tensor.shape]
    fill = torch.ones if tensor.dtype == "bool" else torch.zeros
    return fill(shape, dtype=TORCH_TYPES[tensor.dtype])


def _dynamic_axes(tensor: TensorSpec) -> dict[int, Any]:
    return {axis: Dim(d) for axis, d in enumerate(tensor.shape) if isinstance(d, str)}


def _arguments(values: list[Any], spec: GraphSpec) -> tuple[Any, ...]:
    """Values of a graph's inputs as the arguments of its module: key and value of a layer are a
    pair, and the pairs of all layers a list.
    """
    single = [v for v, tensor in zip(values, spec.inputs, strict=True) if tensor.layer is None]
    layered = [v for v, tensor in zip(values, spec.inputs, strict=True) if tensor.layer is not None]
    owners = [tensor.owner for tensor in spec.inputs if tensor.layer is not None]
    lists = []
    for owner in dict.fromkeys(owners):
        flat = [v for v, o in zip(layered, owners, strict=True) if o is owner]
        lists.append(list(zip(flat[::2], flat[1::2], strict=True)))
    return (*single, *lists)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the exporter's log messages, which do not concern users."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
