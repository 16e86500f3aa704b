"""A manifest is read whole and consistent, or everything that is wrong with it is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from dragoman.runtime.format.manifest import BundleError, Manifest
from dragoman.runtime.format.validation import manifest_from_json

Plain = dict[str, Any]


def problems_of(text: str) -> list[str]:
    with pytest.raises(BundleError) as caught:
        manifest_from_json(text, "the place")
    assert str(caught.value) == "the place: " + "; ".join(caught.value.problems)
    return caught.value.problems


def test_what_is_written_is_read_back_equal(plain_manifest: Plain) -> None:
    manifest = manifest_from_json(json.dumps(plain_manifest), "p")
    assert manifest_from_json(manifest.to_json(), "p") == manifest
    assert json.loads(manifest.to_json()) == plain_manifest
    assert manifest.model.max_target_positions == 20
    assert manifest.graphs["decoder"].inputs[3].shape == ("batch", 3)


def test_a_parity_record_is_kept(plain_manifest: Plain) -> None:
    plain_manifest["parity"] = {
        "passed": False,
        "oracle": "PyTorch",
        "inputs": "ten words",
        "backend": "onnxruntime",
        "tensors": [
            {
                "name": "logits",
                "largest_absolute": 1.5,
                "largest_relative": 0.25,
                "difference": 0.1,
                "tolerance": 0.2,
                "passed": True,
                "positions": 1500,
                "positions_beyond": 1,
            }
        ],
        "tokens": {
            "sequences": 10,
            "identical": 9,
            "divergences": [
                {"input": 3, "step": 1, "expected_token": 5, "found_token": 6, "margin": 0.01}
            ],
            "passed": False,
        },
        "task": {"metric": "word error", "oracle": 0.2, "bundle": 0.3, "passed": False},
    }
    manifest = manifest_from_json(json.dumps(plain_manifest), "p")
    assert json.loads(manifest.to_json()) == plain_manifest
    assert manifest.parity is not None
    assert manifest.parity.tokens.divergences[0].margin == 0.01


def test_a_newer_schema_asks_for_an_upgrade_and_no_more(plain_manifest: Plain) -> None:
    newer = {"schema_version": 2, "name": 5, "whatever": "this version does not know"}
    (problem,) = problems_of(json.dumps(newer))
    assert "schema version 2 is newer than 1" in problem
    assert "pip install --upgrade dragoman" in problem


@pytest.mark.parametrize("version", [0, -1])
def test_an_older_schema_that_never_was_is_refused(plain_manifest: Plain, version: int) -> None:
    plain_manifest["schema_version"] = version
    assert problems_of(json.dumps(plain_manifest)) == [
        f"schema_version: expected 1, found {version}"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "PK\x03\x04 a zip",
        "\ufeff{}",
        "[" * 100_000,
        "[" * 100_000 + "]" * 100_000,
        '{"schema_version": ' + "9" * 5000 + "}",
    ],
    ids=["empty", "cut", "binary", "byte order mark", "nested, cut", "nested", "long number"],
)
def test_what_is_not_json_is_said_to_be_so(text: str) -> None:
    (problem,) = problems_of(text)
    assert problem.startswith("expected JSON: ")


@pytest.mark.parametrize("depth", range(940, 1010, 3))
def test_a_value_nested_as_deep_as_json_goes_is_a_wrong_value(depth: int) -> None:
    nested = '{"schema_version": 1, "name": ' + "[" * depth + "]" * depth + "}"
    assert problems_of(nested)


@pytest.mark.parametrize("text", ["[]", "null", "3", '"x"', "true"])
def test_json_that_is_no_object_is_refused(text: str) -> None:
    (problem,) = problems_of(text)
    assert problem.startswith("manifest: expected an object, found")


def test_wrong_types_and_names_are_all_listed(plain_manifest: Plain) -> None:
    del plain_manifest["name"]
    plain_manifest["precision"] = "fp8"
    plain_manifest["model"]["num_heads"] = "2"
    plain_manifest["encoder"]["inputs"][1]["role"] = "mask"
    plain_manifest["files"][0]["size"] = 7.0
    plain_manifest["colour"] = "blue"
    problems = problems_of(json.dumps(plain_manifest))
    assert len(problems) == 6
    for place in (
        "manifest.name: missing",
        "manifest.precision: expected one of 'fp32', 'fp16', 'bf16', 'int8', 'int4', found 'fp8'",
        "manifest.model.num_heads: expected an integer, found '2'",
        "manifest.graphs.encoder.inputs[1].role: expected one of",
        "manifest.files[0].size: expected an integer, found 7.0",
        "manifest.colour: unknown name",
    ):
        assert any(problem.startswith(place) for problem in problems), place


def remove(graph: str, side: str, role: str) -> Callable[[Plain], None]:
    def change(manifest: Plain) -> None:
        manifest[graph][side] = [t for t in manifest[graph][side] if t["role"] != role]

    return change


def repeat(graph: str, side: str) -> Callable[[Plain], None]:
    return lambda manifest: manifest[graph][side].append(manifest[graph][side][0])


def put(value: object, *place: str) -> Callable[[Plain], None]:
    def change(manifest: Plain) -> None:
        inner = manifest
        for name in place[:-1]:
            inner = inner[name]
        inner[place[-1]] = value

    return change


def move_to_layer(layer: int | None) -> Callable[[Plain], None]:
    return lambda manifest: manifest["encoder"]["outputs"][0].update(layer=layer)


INCONSISTENT: dict[str, tuple[Callable[[Plain], None], list[str]]] = {
    "role missing": (
        remove("decoder", "inputs", "position"),
        ["decoder inputs: no tensor with role position"],
    ),
    "role of a layer missing": (
        remove("decoder", "outputs", "present_value"),
        ["decoder outputs: no tensor with role present_value, layer 0"],
    ),
    "role twice": (
        repeat("encoder", "outputs"),
        ["encoder outputs: two tensors with role cross_key, layer 0"],
    ),
    "role on the wrong side": (
        lambda m: m["encoder"]["inputs"].append(m["decoder"]["outputs"][0]),
        ["encoder inputs: unexpected tensor with role logits"],
    ),
    "layer beyond the last": (
        move_to_layer(1),
        [
            "encoder outputs: no tensor with role cross_key, layer 0",
            "encoder outputs: unexpected tensor with role cross_key, layer 1",
        ],
    ),
    "layered role without layer": (
        move_to_layer(None),
        [
            "encoder outputs: no tensor with role cross_key, layer 0",
            "encoder outputs: unexpected tensor with role cross_key",
        ],
    ),
    "graph not listed": (
        put("other.onnx", "encoder", "file"),
        ["file other.onnx is used but not listed in files"],
    ),
    "tokenizers not listed": (
        put({"source": "s.json", "target": "encoder.onnx"}, "tokenizers"),
        ["file s.json is used but not listed in files"],
    ),
    "no heads": (put(0, "model", "num_heads"), ["model.num_heads: out of range, found 0"]),
    "negative id": (put(-1, "model", "pad_token_id"), ["model.pad_token_id: out of range"]),
    "start beyond the vocabulary": (
        put(13, "model", "start_token_id"),
        ["model.start_token_id: expected less than 13"],
    ),
    "end beyond the vocabulary": (
        put(13, "model", "end_token_id"),
        ["model.end_token_id: expected less than 13"],
    ),
    "padding beyond the smaller vocabulary": (
        put(11, "model", "pad_token_id"),
        ["model.pad_token_id: expected less than 11"],
    ),
    "default too long": (
        put(21, "default_max_new_tokens"),
        ["default_max_new_tokens: expected 1 to 20 (max_target_positions), found 21"],
    ),
    "default zero": (put(0, "default_max_new_tokens"), ["default_max_new_tokens: expected 1 to"]),
}


@pytest.mark.parametrize("name", INCONSISTENT)
def test_an_inconsistency_is_told(plain_manifest: Plain, name: str) -> None:
    change, expected = INCONSISTENT[name]
    change(plain_manifest)
    problems = problems_of(json.dumps(plain_manifest))
    assert len(problems) == len(expected)
    for problem, start in zip(problems, expected, strict=True):
        assert problem.startswith(start)


def test_all_inconsistencies_are_told_at_once(plain_manifest: Plain) -> None:
    expected = []
    for name in (
        "role missing",
        "role twice",
        "graph not listed",
        "no heads",
        "end beyond the vocabulary",
        "default zero",
    ):
        change, problems = INCONSISTENT[name]
        change(plain_manifest)
        expected += problems
    found = problems_of(json.dumps(plain_manifest))
    assert len(found) == len(expected)
    for start in expected:
        assert any(problem.startswith(start) for problem in found), start


def test_the_highest_ids_and_the_longest_default_are_fine(plain_manifest: Plain) -> None:
    plain_manifest["model"] |= {"pad_token_id": 10, "start_token_id": 12, "end_token_id": 12}
    plain_manifest["default_max_new_tokens"] = 20
    assert isinstance(manifest_from_json(json.dumps(plain_manifest), "p"), Manifest)
