"""The suite exports each model once: tracing one takes two seconds a graph, however small it is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
from onnx import ModelProto

from dragoman.export.exporter import ExportedGraph, graph_spec
from dragoman.reference_model import EncoderModel, ReferenceModel
from dragoman.runtime.format.contract import GraphName

LARGEST = 32_000_000
"""Bytes of weights: files of larger models would take longer than tracing them."""

Export = Callable[[ReferenceModel, GraphName], ExportedGraph]


def exported_once(export: Export, folder: Path) -> Export:
    """`export_graph`, with a file for each graph of a model with the same settings and numbers.

    Args:
        folder: which all workers share
    """

    def known(model: ReferenceModel, name: GraphName) -> ExportedGraph:
        if sum(weight.nbytes for weight in model.parameters()) > LARGEST:
            return export(model, name)
        file = folder / _key(model, name)
        if not file.exists():
            made = export(model, name)
            partial = file.with_name(f"{file.name}.{id(made)}")
            partial.write_bytes(ir.to_proto(made.model).SerializeToString())
            partial.replace(file)
            return made
        graph = ir.from_proto(ModelProto.FromString(file.read_bytes()))
        return ExportedGraph(graph, graph_spec(model, name))

    return known


def _key(model: ReferenceModel, name: GraphName) -> str:
    generation = None if isinstance(model, EncoderModel) else model.generation
    digest = hashlib.sha256(f"{name} {model.config} {generation}".encode())
    for named in (model.named_parameters(), model.named_buffers()):
        for tensor_name, tensor in named:
            digest.update(f"{tensor_name} {tensor.dtype} {tensor.shape}".encode())
            digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()
