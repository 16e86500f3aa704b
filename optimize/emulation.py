"""bfloat16 on a processor: the same graph in float32, every result rounded to bfloat16.

ONNX Runtime has no kernels for bfloat16 there. A kernel of an accelerator sums in float32 and
rounds what it writes; so does the emulated graph, node by node.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import onnx_ir as ir

from dragoman.runtime.bundle import Bundle, record_files, write_manifest
from dragoman.runtime.manifest import GraphSpec, TensorSpec
from dragoman.stored_weights import store_weights

from .values import floats

BFLOAT16, FLOAT = ir.DataType.BFLOAT16, ir.DataType.FLOAT


def emulate_bfloat16(model: ir.Model) -> None:
    """Change a graph in place: no tensor of it is bfloat16 any more, all numbers are."""
    graph = model.graph
    for value in graph.initializers.values():
        if value.dtype == BFLOAT16:
            value.const_value = ir.tensor(floats(value), name=value.name)
            value.dtype = FLOAT
    for value in graph.inputs:
        if value.dtype == BFLOAT16:
            value.dtype = FLOAT
    for node in list(graph):
        for value in node.outputs:
            if value.dtype == BFLOAT16:
                value.dtype = FLOAT
                _round(graph, node, value)
        if node.op_type == "Cast" and node.attributes.get_int("to", 0) == BFLOAT16:
            node.attributes["to"] = ir.AttrInt64("to", int(FLOAT))


def _round(graph: ir.Graph, node: ir.Node, value: ir.Value) -> None:
    name = value.name
    value.name = f"{name}.exact"
    narrow = ir.node("Cast", [value], {"to": BFLOAT16})
    wide = ir.node("Cast", narrow.outputs, {"to": FLOAT})
    rounded = wide.outputs[0]
    rounded.name, rounded.shape, rounded.type = name, value.shape, ir.TensorType(FLOAT)
    ir.convenience.replace_all_uses_with(value, rounded, replace_graph_outputs=True)
    narrow.replace_input_with(0, value)
    graph.insert_after(node, [narrow, wide])


def emulated_bundle(bundle: Bundle, directory: Path) -> Bundle:
    """A bundle in bf16 made one that ONNX Runtime can run, in an empty directory, to measure what
    its numbers are worth. The manifest's precision stays bf16."""
    manifest = bundle.manifest
    models = [ir.load(bundle.path(graph.file)) for graph in (manifest.encoder, manifest.decoder)]
    for model in models:
        emulate_bfloat16(model)
    store_weights(models, directory)
    for model, graph in zip(models, (manifest.encoder, manifest.decoder), strict=True):
        ir.save(model, directory / graph.file)
    if manifest.tokenizers is not None:
        for file in {manifest.tokenizers.source, manifest.tokenizers.target}:
            shutil.copyfile(bundle.path(file), directory / file)
    emulated = dataclasses.replace(
        manifest,
        encoder=_in_float32(manifest.encoder),
        decoder=_in_float32(manifest.decoder),
        files=record_files(directory),
    )
    write_manifest(emulated, directory)
    return Bundle(directory, emulated)


def _in_float32(graph: GraphSpec) -> GraphSpec:
    def wide(tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(
            dataclasses.replace(t, dtype="float32") if t.dtype == "bfloat16" else t for t in tensors
        )

    return dataclasses.replace(graph, inputs=wide(graph.inputs), outputs=wide(graph.outputs))
