"""Compares the settings of a bundle with what its checkpoint and its graphs say.

What a bundle is judged by must not come from the bundle: it is computed again from the checkpoint.
Options of the build are held to the operators and weights of the graphs, see `built_as`.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from dragoman.errors import shown
from dragoman.export.checkpoints import OpenedCheckpoint
from dragoman.export.exporter import audio_features, graph_names, graph_spec, head, model_spec
from dragoman.export.neutral_bundle import manifest_of
from dragoman.onnx_graphs.optional_graphs import candidates_spec
from dragoman.optimize.tensorrt.engine_bundle import pinned_spec
from dragoman.reference_model import ConfigError, EncoderModel, ReferenceModel, Transformer
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.contract import (
    ATTENTION_GRAPHS,
    ROLES,
    Change,
    DataType,
    GraphName,
    GraphSpec,
    TensorSpec,
)
from dragoman.runtime.format.manifest import Manifest, OnnxGraphs, TensorRTEngines
from dragoman.runtime.format.neutral_graphs import aligning_layers, neutral_graph
from dragoman.runtime.format.parity import Check
from dragoman.runtime.format.writing import ScratchWriter

from .built_as import Finding, built_as, plain_precision, quantizes_caches

FIELDS = (
    *("kind", "model", "head", "generation", "default_max_new_tokens"),
    *("tokenizers", "languages", "audio", "speech"),
)
"""The fields of a manifest that follow from the checkpoint as they are; `architecture` and `graphs`
follow, too, each in its own way. Name, notes, origin, versions and records are information."""

DTYPES: Mapping[str, DataType] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def compare_settings(bundle: Bundle, checkpoint: OpenedCheckpoint) -> Check:
    """Compare a bundle's manifest with its checkpoint and with its own graphs.

    For engines, which do not show their weights, only fields are compared.
    """
    manifest = bundle.manifest
    findings: list[Finding] = []
    models: dict[str, ir.Model] = {}
    if isinstance(manifest.executable, OnnxGraphs):
        models = {name: ir.load(bundle.graph_path(name)) for name in manifest.graphs}
        findings += built_as(manifest, models, checkpoint.model.config.d_model)
    findings += _of_checkpoint(manifest, checkpoint)
    for name, model in models.items():
        findings += _as_stored(name, manifest.graphs[name], model)
    problems = [finding for finding in findings if finding]
    more = f"; {len(problems) - 1} more settings differ" if len(problems) > 1 else ""
    return Check(
        "settings",
        len(findings),
        "settings",
        len(problems),
        passed=not problems,
        problem=f"{problems[0]}{more}" if problems else "",
    )


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return shown(list(value) if isinstance(value, tuple) else value)


def _of_checkpoint(manifest: Manifest, checkpoint: OpenedCheckpoint) -> Iterator[Finding]:
    expected = _expected(manifest, checkpoint)
    for name in FIELDS:
        if name == "tokenizers" and checkpoint.tokenizers is None:
            continue  # nothing says what a bundle that has some should have
        yield from _differences(name, getattr(expected, name), getattr(manifest, name))
    yield from _differences(
        "architecture",
        checkpoint.model.config.to_dict(),
        stated_architecture(manifest, checkpoint.model),
    )
    yield from _differences("graphs", _by_slot(expected), _by_slot(manifest))


def _differences(path: str, expected: Any, found: Any) -> Iterator[Finding]:
    if dataclasses.is_dataclass(expected) and type(expected) is type(found):
        for field in dataclasses.fields(expected):
            name = field.name
            yield from _differences(f"{path}.{name}", getattr(expected, name), getattr(found, name))
    elif isinstance(expected, dict) and isinstance(found, dict):
        for key in expected | found:
            yield from _differences(f"{path}.{key}", expected.get(key), found.get(key))
    elif expected == found:
        yield ""
    else:
        yield (f"{path}: expected {_shown(expected)} as the checkpoint says, found {_shown(found)}")


def _expected(manifest: Manifest, checkpoint: OpenedCheckpoint) -> Manifest:
    tokenizers, model, record = checkpoint.tokenizers, checkpoint.model, None
    if tokenizers is not None:
        with tempfile.TemporaryDirectory() as directory:
            record = tokenizers.write(ScratchWriter(Path(directory)))
    expected = manifest_of(
        model,
        name=manifest.name,
        graphs=_expected_graphs(manifest, model),
        tokenizers=record,
        languages=tokenizers.languages if tokenizers else None,
    )
    if isinstance(manifest.executable, TensorRTEngines):
        limit = min(expected.default_max_new_tokens, manifest.executable.capacity)
        return dataclasses.replace(expected, default_max_new_tokens=limit)
    return expected


def stated_architecture(manifest: Manifest, model: ReferenceModel) -> dict[str, Any]:
    """The configuration that a manifest states, with defaults for fields that are missing."""
    stated = {key: value for key, value in manifest.architecture.items() if key != "family"}
    try:
        return type(model.config).from_dict(stated).to_dict()
    except ConfigError:
        return stated


def _by_slot(manifest: Manifest) -> dict[str, dict[str, dict[str, TensorSpec]]]:
    return {
        name: {
            "inputs": {str(tensor.slot): tensor for tensor in graph.inputs},
            "outputs": {str(tensor.slot): tensor for tensor in graph.outputs},
        }
        for name, graph in manifest.graphs.items()
    }


def _expected_graphs(manifest: Manifest, model: ReferenceModel) -> dict[str, GraphSpec]:
    graphs: dict[str, GraphSpec] = {name: graph_spec(model, name) for name in graph_names(model)}
    for name in ATTENTION_GRAPHS & manifest.graphs.keys():
        graphs[name] = _attention(model, name)
    if isinstance(manifest.executable, TensorRTEngines):
        sizes = {"query": 1, "read": 1, "capacity": manifest.executable.capacity}
        graphs = {name: pinned_spec(graph, sizes) for name, graph in graphs.items()}
    graphs = {name: _adapted(graph, name, manifest) for name, graph in graphs.items()}
    if "candidates" in manifest.graphs and not isinstance(model, EncoderModel):
        suppressed = model.generation.suppressed_token_ids
        graphs["candidates"] = candidates_spec(graphs["decoder"], suppressed)
    return graphs


def _adapted(graph: GraphSpec, name: str, manifest: Manifest) -> GraphSpec:
    stated = manifest.graphs.get(name, graph)
    known = {tensor.slot: tensor for tensor in (*stated.inputs, *stated.outputs)}
    plain = DTYPES[plain_precision(manifest)]

    def adapt(tensor: TensorSpec) -> TensorSpec:
        found = known.get(tensor.slot, tensor)
        dtype = plain if ROLES[tensor.role].dtype is None else tensor.dtype
        # A pass quantizes the caches of some layers; `_as_stored` sees in the graph which ones.
        appended = tensor.change is Change.APPENDED
        if appended and found.dtype == "int8" and quantizes_caches(manifest):
            dtype = "int8"
        return dataclasses.replace(tensor, dtype=dtype)

    return graph.map(adapt)


def _attention(model: ReferenceModel, name: GraphName) -> GraphSpec:
    config = model.config
    layers = {
        "encoder_attention": len(config.applied_encoder_layers),
        "self_attention": config.decoder_layers,
        "cross_attention": config.decoder_layers,
    }
    spec = model_spec(config)
    if name == "alignment" and isinstance(model, Transformer):
        layers["cross_attention"] = len(aligning_layers(spec, model.generation.heads_that_align))
    graph = neutral_graph(name, "", spec, audio_features(config), head(config))

    def counted(tensor: TensorSpec) -> TensorSpec:
        shape = tuple(layers[tensor.role] if s == "layers" else s for s in tensor.shape)
        return dataclasses.replace(tensor, shape=shape)

    return graph.map(counted)


def _as_stored(name: str, spec: GraphSpec, model: ir.Model) -> Iterator[Finding]:
    for side, tensors, values in (
        ("inputs", spec.inputs, model.graph.inputs),
        ("outputs", spec.outputs, model.graph.outputs),
    ):
        dtypes = {value.name: value.dtype for value in values}
        for tensor in tensors:
            path, dtype = f"graphs.{name}.{side}.{tensor.slot}", dtypes.get(tensor.name)
            if dtype is None:
                inside = f"one of the {side} of {spec.file}"
                yield f"{path}.name: expected {inside}, found {tensor.name!r}"
            elif dtype.numpy().name == tensor.dtype:
                yield ""
            else:
                stored = dtype.numpy().name
                yield f"{path}.dtype: expected {stored} as {spec.file} has it, found {tensor.dtype}"
