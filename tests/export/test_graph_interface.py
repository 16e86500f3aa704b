"""The interface of the graphs, literally: names, roles, dynamic axes and number formats."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir

from dragoman.export.exporter import ExportedGraph
from dragoman.runtime.format.contract import TensorSpec
from dragoman.runtime.format.manifest import Manifest
from dragoman.runtime.format.validation import manifest_from_json

CROSS = ("source_batch", 4, "source", 16)
CACHE = ("batch", 4, "capacity", 16)


def layered(kind: str, shape: tuple[int | str, ...]) -> list[TensorSpec]:
    return [
        TensorSpec(f"{kind}_{part}_{layer}", f"{kind}_{part}", "float32", shape, layer)  # type: ignore[arg-type]
        for layer in range(2)
        for part in ("key", "value")
    ]


ENCODER_INPUTS = [
    TensorSpec("source", "source", "int64", ("source_batch", "source")),
    TensorSpec("source_mask", "source_mask", "bool", ("source_batch", "source")),
]
DECODER_INPUTS = [
    TensorSpec("token", "token", "int64", ("batch", "query")),
    TensorSpec("position", "position", "int64", ("batch",)),
    TensorSpec("source_mask", "source_mask", "bool", ("source_batch", "source")),
    *layered("cross", CROSS),
    *layered("past", CACHE),
]
DECODER_OUTPUTS = [
    TensorSpec("logits", "logits", "float32", ("batch", "query", 50)),
    TensorSpec("next_token", "next_token", "int64", ("batch",)),
    TensorSpec("next_log_probability", "next_log_probability", "float32", ("batch",)),
    *layered("present", CACHE),
]


def test_the_manifest_describes_the_contracts_tensors(
    tiny_bundle: tuple[Path, Manifest],
) -> None:
    _, manifest = tiny_bundle
    assert list(manifest.graphs["encoder"].inputs) == ENCODER_INPUTS
    assert list(manifest.graphs["encoder"].outputs) == layered("cross", CROSS)
    assert list(manifest.graphs["decoder"].inputs) == DECODER_INPUTS
    assert list(manifest.graphs["decoder"].outputs) == DECODER_OUTPUTS


def test_the_files_match_the_manifest(encoder: ExportedGraph, decoder: ExportedGraph) -> None:
    names = {
        ir.DataType.FLOAT: "float32",
        ir.DataType.INT64: "int64",
        ir.DataType.BOOL: "bool",
    }
    for exported in (encoder, decoder):
        graph = exported.model.graph
        for values, specs in (
            (graph.inputs, exported.spec.inputs),
            (graph.outputs, exported.spec.outputs),
        ):
            assert [value.name for value in values] == [spec.name for spec in specs]
            for value, spec in zip(values, specs, strict=True):
                assert value.shape is not None and value.dtype is not None
                found = tuple(d if isinstance(d, int) else d.value for d in value.shape)
                assert (found, names[value.dtype]) == (spec.shape, spec.dtype), spec.name


def test_the_manifest_written_is_the_one_returned(tiny_bundle: tuple[Path, Manifest]) -> None:
    directory, manifest = tiny_bundle
    text = (directory / "manifest.json").read_text(encoding="utf-8")
    assert manifest_from_json(text, "here") == manifest
    files = ["candidates.onnx", "decoder.onnx", "encoder.onnx", "weights.bin"]
    assert sorted(f.path for f in manifest.files) == files
    assert (manifest.target, manifest.precision, manifest.parity) == ("neutral", "fp32", None)
    assert manifest.default_max_new_tokens == 128
    assert set(manifest.tool_versions) == {"dragoman", "torch", "onnx", "onnx-ir", "onnxscript"}


def test_opset_24_of_the_default_domain_and_nothing_else(
    encoder: ExportedGraph, decoder: ExportedGraph
) -> None:
    for exported in (encoder, decoder):
        assert dict(exported.model.opset_imports) == {"": 24}
        assert {node.domain for node in exported.model.graph.all_nodes()} <= {"", "ai.onnx"}
        assert len(exported.model.functions) == 0


def test_onnx_checker_accepts_the_graphs(tiny_bundle: tuple[Path, Manifest]) -> None:
    directory, _ = tiny_bundle
    for name in ("encoder.onnx", "decoder.onnx", "candidates.onnx"):
        onnx.checker.check_model(directory / name, full_check=True)


def test_every_input_is_used_and_every_node_needed(
    encoder: ExportedGraph, decoder: ExportedGraph
) -> None:
    for exported in (encoder, decoder):
        graph = exported.model.graph
        assert all(value.uses() for value in graph.inputs)
        assert all(value.uses() for value in graph.initializers.values())
        outputs = set(graph.outputs)
        for node in graph:
            assert any(value.uses() or value in outputs for value in node.outputs), node.name
