"""A bundle that was stored when schema 1 was released is still read, and decodes as it did then.

`stored_bundle/` has a cpu bundle, what it decoded (`expected.json`), and the manifest of engines.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.runtime import BundleError, load, read_bundle
from dragoman.runtime.backends import default_backend
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.manifest import (
    SCHEMA_VERSION,
    OnnxGraphs,
    Profile,
    Range,
    TensorRTEngines,
)
from dragoman.runtime.format.validation import manifest_from_json
from dragoman.settings.generation_settings import GenerationSettings

DIRECTORY = Path(__file__).parent / "stored_bundle"
Plain = dict[str, Any]


def plain(path: str) -> Plain:
    data: Plain = json.loads((DIRECTORY / path).read_text())
    assert data["schema_version"] == 1
    return data


def test_the_bundle_is_read() -> None:
    manifest = read_bundle(DIRECTORY / "bundle").manifest
    assert (manifest.schema_version, manifest.kind) == (SCHEMA_VERSION, "sequence-to-sequence")
    assert (manifest.name, manifest.target, manifest.precision) == ("stored", "cpu", "fp32")
    assert [*manifest.graphs] == ["encoder", "decoder"]
    assert manifest.graphs["decoder"].file == "decoder.onnx"
    assert manifest.graphs["decoder"].input("past_key").shape == ("batch", 2, "capacity", 8)
    assert manifest.graphs["decoder"].input("cross_key").shape == ("source_batch", 2, "source", 8)
    assert manifest.executable == OnnxGraphs()
    assert manifest.generation == GenerationSettings(
        suppressed_token_ids=(5, 11), no_repeat_ngram_size=2, min_new_tokens=2
    )
    assert {record.graph for record in manifest.passes} == {"encoder", "decoder"}


def test_its_manifest_is_written_as_it_was_read() -> None:
    manifest = read_bundle(DIRECTORY / "bundle").manifest
    assert manifest.to_json() == (DIRECTORY / "bundle" / "manifest.json").read_text()


def test_it_generates_the_same_tokens() -> None:
    expected = json.loads((DIRECTORY / "expected.json").read_text())
    model = load(DIRECTORY / "bundle", threads=1)
    results = model.generate([case["source"] for case in expected])
    for result, case in zip(results, expected, strict=True):
        assert list(result.tokens) == case["tokens"]
        assert result.finish_reason == case["finish_reason"]
        assert result.log_probability == pytest.approx(case["log_probability"], abs=1e-4)


def test_a_damaged_file_is_reported(tmp_path: Path) -> None:
    for file in (DIRECTORY / "bundle").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = bytearray((tmp_path / "weights.bin").read_bytes())
    weights[-1] ^= 1
    (tmp_path / "weights.bin").write_bytes(weights)
    with pytest.raises(BundleError, match=r"weights\.bin: its SHA-256 is not the recorded one"):
        read_bundle(tmp_path)


def test_engines_are_a_variant_of_the_executable() -> None:
    stored = plain("engines_manifest.json")
    manifest = manifest_from_json(json.dumps(stored), "p")
    engines = manifest.executable
    assert isinstance(engines, TensorRTEngines)
    assert (engines.version, engines.cuda_version) == ("1.7.1.116", "13")
    assert (engines.capacity, engines.refittable) == (9, False)
    source = Range(1, 8, 12)
    assert engines.profiles == (
        Profile(Range(1, 1, 1), source),
        Profile(Range(1, 8, 16), source),
    )
    assert [*engines.reports] == ["encoder", "decoder"]
    for name, report in engines.reports.items():
        assert json.loads(json.dumps(vars(report))) == stored["executable"]["reports"][name]
    assert (engines.reports["encoder"].attentions, engines.reports["decoder"].attentions) == (1, 2)
    assert manifest.graphs["encoder"].file == "encoder.engine"
    assert default_backend(Bundle(Path("b"), manifest)) == "tensorrt-rtx"
    assert manifest_from_json(manifest.to_json(), "p") == manifest


def test_optional_names_may_be_missing() -> None:
    stored = plain("bundle/manifest.json")
    for name in ("generation", "languages", "parity", "audio", "speech", "passes"):
        del stored[name]
    manifest = manifest_from_json(json.dumps(stored), "p")
    assert manifest.generation == GenerationSettings()


def drop(*path: str) -> Callable[[Plain], None]:
    def damage(manifest: Plain) -> None:
        for name in path[:-1]:
            manifest = manifest[name]
        del manifest[path[-1]]

    return damage


def put(value: object, *path: str) -> Callable[[Plain], None]:
    def damage(manifest: Plain) -> None:
        for name in path[:-1]:
            manifest = manifest[name]
        manifest[path[-1]] = value

    return damage


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (
            drop("graphs", "encoder"),
            "graphs: expected encoder, decoder for kind sequence-to-sequence",
        ),
        (drop("graphs", "decoder", "file"), "manifest.graphs.decoder.file: missing"),
        (put(None, "graphs", "decoder"), "manifest.graphs.decoder: expected an object, found None"),
        (put([], "executable"), "manifest.executable: expected an object, found []"),
        (drop("executable", "version"), "manifest.executable.version: missing"),
        (
            drop("executable", "reports", "decoder"),
            "executable.reports: expected encoder, decoder, found enc",
        ),
        (
            put(3, "executable", "reports", "encoder"),
            "manifest.executable.reports.encoder: expected an object",
        ),
        (put(13, "executable", "capacity"), "executable.capacity: expected 1 to 12"),
        (
            put([99], "generation", "suppressed_token_ids"),
            "generation.suppressed_token_ids: expected",
        ),
        (
            put([], "graphs", "decoder", "inputs"),
            "graphs.decoder.inputs: no tensor with role token",
        ),
        (put("x", "files"), "manifest.files: expected a list, found 'x'"),
        (put("blue", "colour"), "manifest.colour: unknown name"),
    ],
)
def test_a_problem_is_reported(damage: Callable[[Plain], None], problem: str) -> None:
    manifest = plain("engines_manifest.json")
    damage(manifest)
    with pytest.raises(BundleError) as caught:
        manifest_from_json(json.dumps(manifest), "p")
    assert any(found.startswith(problem) for found in caught.value.problems), caught.value.problems
