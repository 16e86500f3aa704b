"""A bundle that is not whole, or not for this version: every command says what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

Outcome = CompletedProcess[str]
Dragoman = Callable[..., Outcome]


def refused(outcome: Outcome) -> str:
    assert outcome.returncode == 2
    assert outcome.stdout == ""
    (line,) = outcome.stderr.splitlines()
    assert line.startswith("Error: ")
    return line


def edit_manifest(bundle: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = bundle / "manifest.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")


@pytest.mark.parametrize("command", ["run", "inspect", "bench", "verify"])
def test_a_changed_file(
    dragoman: Dragoman, bundle_copy: Path, checkpoint: Path, command: str
) -> None:
    file = bundle_copy / "weights.bin"
    content = bytearray(file.read_bytes())
    content[1000] ^= 1
    file.write_bytes(content)
    arguments = [checkpoint] if command == "verify" else []
    message = refused(dragoman(command, bundle_copy, *arguments))
    assert "weights.bin: its SHA-256 is not the recorded one: the file was changed" in message


def test_all_damage_is_listed_at_once(dragoman: Dragoman, bundle_copy: Path) -> None:
    (bundle_copy / "encoder.onnx").unlink()
    weights = bundle_copy / "weights.bin"
    size = weights.stat().st_size
    weights.write_bytes(weights.read_bytes()[:100])
    tokenizer = bundle_copy / "source_tokenizer.json"
    tokenizer.write_bytes(tokenizer.read_bytes().replace(b"</s>", b"</S>"))
    message = refused(dragoman("run", bundle_copy, "word"))
    assert "encoder.onnx: missing" in message
    assert f"weights.bin: expected {size} bytes, found 100" in message
    assert "source_tokenizer.json: its SHA-256 is not the recorded one" in message


def test_a_newer_schema(dragoman: Dragoman, bundle_copy: Path) -> None:
    edit_manifest(bundle_copy, lambda data: data.update(schema_version=99, novelty=True))
    message = refused(dragoman("run", bundle_copy, "word"))
    assert "schema version 99 is newer than" in message
    assert "pip install --upgrade dragoman" in message


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}"])
def test_a_manifest_that_is_not_one(dragoman: Dragoman, bundle_copy: Path, text: str) -> None:
    (bundle_copy / "manifest.json").write_text(text, encoding="utf-8")
    refused(dragoman("inspect", bundle_copy))


def test_a_graph_that_onnx_runtime_cannot_load(dragoman: Dragoman, bundle_copy: Path) -> None:
    """ONNX without a graph, recorded as it is, so that only the backend can find out."""
    import hashlib

    content = b"\x08\x0a"
    (bundle_copy / "decoder.onnx").write_bytes(content)

    def record(data: dict[str, Any]) -> None:
        for file in data["files"]:
            if file["path"] == "decoder.onnx":
                file |= {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    edit_manifest(bundle_copy, record)
    message = refused(dragoman("run", bundle_copy, "word"))
    assert "decoder.onnx" in message and "cannot load this graph" in message


def test_a_file_in_place_of_a_bundle(dragoman: Dragoman, bundle: Path) -> None:
    message = refused(dragoman("inspect", bundle / "manifest.json"))
    assert "expected a bundle" in message
