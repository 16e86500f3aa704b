"""The suite's cache of exported graphs: what is found in it is what the exporter makes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest

from dragoman.export.exporter import ExportedGraph, export_graph
from dragoman.reference_model import GenerationConfig, ModelConfig, ReferenceModel
from dragoman.runtime.format.contract import GraphName

from .export_cache import cached, cached_export, code_of, prune, sources_of
from .random_weights import random_transformer

CONFIG = ModelConfig(
    source_vocab_size=11,
    target_vocab_size=13,
    encoder_layers=1,
    decoder_layers=1,
    d_model=8,
    num_heads=2,
    d_ff=12,
)


def counting(made: list[GraphName]) -> Callable[[ReferenceModel, GraphName], ExportedGraph]:
    def export(model: ReferenceModel, name: GraphName) -> ExportedGraph:
        made.append(name)
        return export_graph(model, name)

    return export


def serialized(exported: ExportedGraph) -> bytes:
    content: bytes = ir.to_proto(exported.model).SerializeToString()
    return content


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_a_graph_is_the_exporter_s(name: GraphName, tmp_path: Path) -> None:
    """Also that of a model with other weights."""
    made: list[GraphName] = []
    for seed in (1, 2):
        model = random_transformer(CONFIG, seed=seed)
        expected = export_graph(model, name)
        found = cached_export(counting(made), tmp_path)(model, name)
        assert serialized(found) == serialized(expected)
        assert found.spec == expected.spec
    assert made == [name]


def test_whatever_changes_a_graph_is_part_of_its_key(tmp_path: Path) -> None:
    made: list[GraphName] = []

    def export(model: ReferenceModel, name: GraphName) -> ExportedGraph:
        made.append(name)
        return ExportedGraph(ir.Model(ir.Graph([], [], nodes=[]), ir_version=10), None)  # type: ignore[arg-type]

    known = cached_export(export, tmp_path)
    model = random_transformer(CONFIG, seed=1)
    known(model, "decoder")
    model.generation = GenerationConfig(num_beams=4)
    known(model, "decoder")
    assert made == ["decoder"]
    model.generation = GenerationConfig(suppressed_token_ids=(3,))
    known(model, "decoder")
    known(random_transformer(CONFIG.replace(activation="gelu"), seed=1), "decoder")
    tied = random_transformer(CONFIG, seed=1)
    inner = "layers.0.feed_forward.inner"
    tied.decoder.get_submodule(inner).bias = tied.encoder.get_submodule(inner).bias
    known(tied, "decoder")
    assert made == ["decoder"] * 4
    known(random_transformer(CONFIG, seed=2), "encoder")
    assert made == [*["decoder"] * 4, "encoder"]


def test_words_do_not_change_a_key_and_code_does() -> None:
    source = b'"""One."""\n\ndef f(x):\n    """Two."""\n    # three\n    return "a" + x\n'
    others = [b"def f(x): return 'a' + x", b'"""Four."""\ndef f(x):\n    return "a" + x\n']
    assert {code_of(other) for other in others} == {code_of(source)}
    assert code_of(source.replace(b'"a"', b'"b"')) != code_of(source)


def test_the_sources_are_all_that_the_exporter_imports() -> None:
    names = {"/".join(file.parts[-2:]) for file in sources_of("dragoman.export.exporter")}
    assert {"export/exporter.py", "reference_model/layers.py"} <= names
    assert not {name for name in names if name.startswith(("optimize/", "cli/", "verification/"))}


def test_files_that_were_used_longest_ago_are_deleted(tmp_path: Path) -> None:
    for time, name in enumerate(("first", "second", "third")):
        known = set(tmp_path.iterdir())
        cached(name, lambda: bytes(40), tmp_path)
        (new,) = set(tmp_path.iterdir()) - known
        os.utime(new, (time, time))
    cached("first", bytes, tmp_path)
    prune(tmp_path, limit=100)
    assert cached("first", bytes, tmp_path) == cached("third", bytes, tmp_path) == bytes(40)
    assert cached("second", bytes, tmp_path) == b""
