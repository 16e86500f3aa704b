"""A manifest is read if it is valid and consistent; otherwise the error lists every problem."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from dragoman.runtime.format.manifest import BundleError, Manifest
from dragoman.runtime.format.validation import manifest_from_json

from ..conftest import tensor

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
    assert manifest.graphs["decoder"].inputs[3].shape == ("source_batch", 2, "source", 3)


@pytest.mark.parametrize(
    "value", ["x" * 100_000, 10**4000, ["x" * 100_000], {"x" * 100_000: 1}], ids=["text", *"123"]
)
def test_no_error_echoes_a_long_value(plain_manifest: Plain, value: Any) -> None:
    errors = []
    for name in plain_manifest:
        try:  # some fields take any text, or any names
            manifest_from_json(json.dumps(plain_manifest | {name: value}), "the place")
        except BundleError as error:
            errors.append(str(error))
    assert len(errors) > len(plain_manifest) // 2 and max(map(len, errors)) <= 1100


def test_where_a_model_comes_from_is_kept(plain_manifest: Plain) -> None:
    plain_manifest["origin"] = {"model": "owner/model", "commit": "12ab"}
    manifest = manifest_from_json(json.dumps(plain_manifest), "p")
    assert json.loads(manifest.to_json()) == plain_manifest
    plain_manifest["origin"] = {"model": "owner/model"}
    assert problems_of(json.dumps(plain_manifest)) == ["manifest.origin.commit: missing"]


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
        "tasks": [
            {
                "metric": "word error",
                "oracle": 0.2,
                "bundle": 0.3,
                "passed": False,
                "higher_is_better": False,
                "allowed": None,
                "chance": None,
                "pairs": 0,
                "signature": "",
            }
        ],
    }
    manifest = manifest_from_json(json.dumps(plain_manifest), "p")
    assert json.loads(manifest.to_json()) == plain_manifest
    assert manifest.parity is not None
    assert manifest.parity.tokens.divergences[0].margin == 0.01


STRATEGIES: dict[str, list[Plain]] = {
    "valid": [
        {"num_beams": 4, "length_penalty": 0.6, "early_stopping": True},
        {"num_beams": 13, "length_penalty": -50.0, "early_stopping": "never"},
        {"do_sample": True, "temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.125},
        {"temperature": 2.0, "top_p": 0.0, "min_p": 1.0, "num_beams": 2},
    ],
    "num_beams: expected 1 to 13, the vocabulary, found": [{"num_beams": n} for n in (-1, 0, 14)],
    "length_penalty: expected -50 to 50, found": [{"length_penalty": p} for p in (51, -1e300)],
    "early_stopping: expected true or false or 'never', found": [
        {"early_stopping": value} for value in (1, "always", None)
    ],
    "do_sample: expected false with 2 beams, found true": [{"do_sample": True, "num_beams": 2}],
    "temperature: expected over 0, in the range": [{"temperature": t} for t in (0, -1, 1e-300)],
    "top_k: expected at least 0, found -1": [{"top_k": -1}],
    "top_p: expected 0 to 1, found": [{"top_p": p} for p in (-0.1, 1.1)],
    "min_p: expected 0 to 1, found": [{"min_p": p} for p in (-0.1, 1.1)],
}


@pytest.mark.parametrize("strategy", STRATEGIES["valid"], ids=str)
def test_a_strategy_is_kept(plain_manifest: Plain, strategy: Plain) -> None:
    plain_manifest["generation"] |= strategy
    manifest = manifest_from_json(json.dumps(plain_manifest), "p")
    assert {name: getattr(manifest.generation, name) for name in strategy} == strategy
    assert json.loads(manifest.to_json()) == plain_manifest


@pytest.mark.parametrize(
    ("problem", "strategy"),
    [(p, strategy) for p, all_of in STRATEGIES.items() if p != "valid" for strategy in all_of],
    ids=str,
)
def test_a_strategy_out_of_range_is_refused(
    plain_manifest: Plain, problem: str, strategy: Plain
) -> None:
    plain_manifest["generation"] |= strategy
    (found,) = problems_of(json.dumps(plain_manifest))
    assert found.removeprefix("manifest.").removeprefix("generation.").startswith(problem)


def test_figures_that_older_versions_do_not_know_are_kept(plain_manifest: Plain) -> None:
    distance = {
        "mean": 0.01,
        "median": 0.001,
        "percentile_99": 0.1,
        "largest": 0.5,
        "same_choice": 0.75,
    }
    tensor = {"name": "logits", "largest_absolute": 1.5, "largest_relative": 0.25}
    tensor |= {"difference": 0.1, "tolerance": None, "passed": True}
    tensor |= {"positions": 15, "positions_beyond": 0}
    plain_manifest["parity"] = {
        "passed": True,
        "oracle": "PyTorch",
        "inputs": "ten words",
        "backend": "onnxruntime",
        "tensors": [tensor],
        "tokens": {"sequences": 10, "identical": 10, "divergences": [], "passed": True},
        "references": {
            "references": "references.tsv",
            "pairs": 10,
            "tokens": 57,
            "oracle": 1.25,
            "bundle": 1.5,
            "tolerance": 0.2,
            "passed": False,
        },
        "distributions": {
            "positions": 40,
            "bundle": distance,
            "rounded": distance | {"mean": 0.02},
            "allowed": 0.04,
            "passed": True,
        },
    }
    manifest = manifest_from_json(json.dumps(plain_manifest), "p")
    assert json.loads(manifest.to_json()) == plain_manifest
    assert manifest.parity is not None and manifest.parity.distributions is not None
    assert manifest.parity.distributions.bundle.same_choice == 0.75
    plain_manifest["parity"]["distributions"] |= {"rounded": None, "allowed": None, "ties": 2}
    manifest = manifest_from_json(json.dumps(plain_manifest), "p")
    assert json.loads(manifest.to_json()) == plain_manifest


def divergence(**more: object) -> Plain:
    return {
        "input": 7,
        "step": 3,
        "expected_token": 5,
        "found_token": 6,
        "margin": 0.25,
    } | more


def parity_record(**more: object) -> Plain:
    tokens = {"sequences": 10, "identical": 9, "divergences": [divergence()], "passed": True}
    return {
        "passed": True,
        "oracle": "PyTorch",
        "inputs": "ten words",
        "backend": "onnxruntime",
        "tensors": [],
        "tokens": tokens,
    } | more


def test_metrics_and_names_are_kept_and_what_is_not_there_is_not_written(
    plain_manifest: Plain,
) -> None:
    task = {
        "metric": "BLEU",
        "oracle": 41.5,
        "bundle": 41.25,
        "passed": True,
        "higher_is_better": True,
        "allowed": 0.3,
        "chance": 0.125,
        "pairs": 3000,
        "signature": "nrefs:1|case:mixed",
    }
    named = divergence(
        origin="words.txt, line 8", source="a house", expected="ein Haus", found="Haus"
    )
    silent = named | {"found": ""}
    tokens = parity_record()["tokens"] | {"divergences": [divergence(), named, silent]}
    plain_manifest["parity"] = parity_record(tasks=[task], tokens=tokens)
    manifest = manifest_from_json(json.dumps(plain_manifest), "p")
    assert json.loads(manifest.to_json()) == plain_manifest
    assert manifest.parity is not None
    assert manifest.parity.tasks[0].loss == 0.25
    assert manifest.parity.tokens.divergences[1].named == "words.txt, line 8"
    assert [d.found for d in manifest.parity.tokens.divergences] == [None, "Haus", ""]


@pytest.mark.parametrize(
    "parity", [{"task": 5}, {"task": None}, {"tasks": {}}, {"tasks": [5]}, {"tasks": [{}]}]
)
def test_what_is_wrong_with_metrics_is_found(plain_manifest: Plain, parity: Plain) -> None:
    plain_manifest["parity"] = parity_record(**parity)
    assert all("parity.task" in problem for problem in problems_of(json.dumps(plain_manifest)))


def test_a_newer_schema_asks_for_an_upgrade_and_reports_nothing_else(plain_manifest: Plain) -> None:
    newer = {"schema_version": 2, "name": 5, "whatever": "this version does not know"}
    (problem,) = problems_of(json.dumps(newer))
    assert "schema version 2 is newer than 1" in problem
    assert "pip install --upgrade dragoman" in problem


@pytest.mark.parametrize("version", [0, -1])
def test_a_schema_version_that_never_existed_is_refused(
    plain_manifest: Plain, version: int
) -> None:
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
        '{"schema_version": 2, "schema_version": 2}',
        '{"schema_version": 1e999}',
        '{"schema_version": NaN}',
        r'{"name": "\ud800"}',
    ],
    ids=[
        *("empty", "cut", "binary", "byte order mark", "nested, cut", "nested", "long number"),
        *("a name twice", "infinity", "NaN", "half a character"),
    ],
)
def test_text_that_is_not_json_is_reported(text: str) -> None:
    (problem,) = problems_of(text)
    assert problem.startswith("expected JSON: ")


@pytest.mark.parametrize("depth", range(940, 1010, 3))
def test_a_value_nested_to_the_limit_of_json_is_reported(depth: int) -> None:
    nested = '{"schema_version": 2, "name": ' + "[" * depth + "]" * depth + "}"
    assert problems_of(nested)


@pytest.mark.parametrize("text", ["[]", "null", "3", '"x"', "true"])
def test_json_that_is_not_an_object_is_refused(text: str) -> None:
    (problem,) = problems_of(text)
    assert problem.startswith("manifest: expected an object, found")


def test_all_wrong_types_and_names_are_listed(plain_manifest: Plain) -> None:
    del plain_manifest["name"]
    plain_manifest["precision"] = "fp8"
    plain_manifest["model"]["num_heads"] = "2"
    plain_manifest["graphs"]["encoder"]["inputs"][1]["role"] = "mask"
    plain_manifest["files"][0]["size"] = 7.0
    plain_manifest["colour"] = "blue"
    problems = problems_of(json.dumps(plain_manifest))
    assert len(problems) == 6
    for path in (
        "manifest.name: missing",
        "manifest.precision: expected one of 'fp32', 'fp16', 'bf16', 'int8', 'int4', found 'fp8'",
        "manifest.model.num_heads: expected an integer, found '2'",
        "manifest.graphs.encoder.inputs[1].role: expected one of",
        "manifest.files[0].size: expected an integer, found 7.0",
        "manifest.colour: unknown name",
    ):
        assert any(problem.startswith(path) for problem in problems), path


def remove(graph: str, side: str, role: str) -> Callable[[Plain], None]:
    def change(manifest: Plain) -> None:
        tensors = manifest["graphs"][graph]
        tensors[side] = [t for t in tensors[side] if t["role"] != role]

    return change


def repeat(graph: str, side: str) -> Callable[[Plain], None]:
    def change(manifest: Plain) -> None:
        tensors = manifest["graphs"][graph][side]
        tensors.append(tensors[0])

    return change


def put(value: object, *path: str) -> Callable[[Plain], None]:
    def change(manifest: Plain) -> None:
        inner = manifest
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = value

    return change


def test_a_number_in_place_of_a_dynamic_axis_and_any_float_are_fine(plain_manifest: Plain) -> None:
    change_tensor("decoder", "token", shape=["batch", 1])(plain_manifest)
    for value in ("past_key", "past_value"):
        change_tensor("decoder", value, shape=["batch", 2, 20, 3], dtype="bfloat16")(plain_manifest)
    manifest = manifest_from_json(json.dumps(plain_manifest), "p")
    assert manifest.graphs["decoder"].input("past_key").dtype == "bfloat16"


@pytest.mark.parametrize("kind", ["decoder", None, 3])
def test_an_unknown_kind_is_refused(plain_manifest: Plain, kind: object) -> None:
    plain_manifest["kind"] = kind
    assert problems_of(json.dumps(plain_manifest)) == [
        "manifest.kind: expected one of 'sequence-to-sequence', 'encoder', 'language-model', found "
        f"{kind!r}"
    ]


def test_a_kind_follows_from_the_sizes(plain_manifest: Plain) -> None:
    plain_manifest["kind"] = "encoder"
    assert problems_of(json.dumps(plain_manifest)) == [
        "kind: expected sequence-to-sequence for a model of these sizes, found encoder",
        "head: expected one for kind encoder",
    ]


def move_to_layer(layer: int | None) -> Callable[[Plain], None]:
    return lambda manifest: manifest["graphs"]["encoder"]["outputs"][0].update(layer=layer)


def change_tensor(graph: str, role: str, **changes: Any) -> Callable[[Plain], None]:
    """Change the first input of a role."""

    def change(manifest: Plain) -> None:
        inputs = manifest["graphs"][graph]["inputs"]
        next(t for t in inputs if t["role"] == role).update(changes)

    return change


CACHES = [
    ("encoder", "outputs", ["cross_key_0", "cross_value_0"]),
    ("decoder", "inputs", ["cross_key_0", "cross_value_0", "past_key_0", "past_value_0"]),
    ("decoder", "outputs", ["present_key_0", "present_value_0"]),
]
OF_SHAPES = {
    "num_heads": CACHES,
    "head_size": CACHES,
    "target_vocab_size": [("decoder", "outputs", ["logits"])],
}
"""Fields of the model that shapes of tensors state too, and those tensors."""

INCONSISTENT: dict[str, tuple[Callable[[Plain], None], list[str]]] = {
    "role missing": (
        remove("decoder", "inputs", "position"),
        ["graphs.decoder.inputs: no tensor with role position"],
    ),
    "role of a layer missing": (
        remove("decoder", "outputs", "present_value"),
        ["graphs.decoder.outputs: no tensor with role present_value, layer 0"],
    ),
    "role twice": (
        repeat("encoder", "outputs"),
        ["graphs.encoder.outputs: two tensors with role cross_key, layer 0"],
    ),
    "role on the wrong side": (
        lambda m: m["graphs"]["encoder"]["inputs"].append(m["graphs"]["decoder"]["outputs"][0]),
        ["graphs.encoder.inputs: unexpected tensor with role logits"],
    ),
    "layer beyond the last": (
        move_to_layer(1),
        [
            "graphs.encoder.outputs: no tensor with role cross_key, layer 0",
            "graphs.encoder.outputs: unexpected tensor with role cross_key, layer 1",
        ],
    ),
    "layered role without layer": (
        move_to_layer(None),
        [
            "graphs.encoder.outputs: no tensor with role cross_key, layer 0",
            "graphs.encoder.outputs: unexpected tensor with role cross_key",
        ],
    ),
    "graph not listed": (
        put("other.onnx", "graphs", "encoder", "file"),
        ["file other.onnx is used but not listed in files"],
    ),
    "tokenizers not listed": (
        put({"source": "s.json", "target": "encoder.onnx"}, "tokenizers"),
        ["file s.json is used but not listed in files"],
    ),
    "no heads": (put(0, "model", "num_heads"), ["model.num_heads: out of range, found 0"]),
    **{
        f"{field} {value} beside other shapes": (
            put(value, "model", field),
            [
                f"graphs.{graph}.{side}: {name}: expected shape"
                for graph, side, names in tensors
                for name in names
            ],
        )
        for field, tensors in OF_SHAPES.items()
        for value in (1, 2**62)
        if (field, value) != ("target_vocab_size", 1)  # below the start token
    },
    "a number beyond 64 bits": (
        put(2**63, "model", "max_target_positions"),
        ["manifest.model.max_target_positions: expected a number that fits 64 bits"],
    ),
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
    "another shape": (
        change_tensor("decoder", "past_key", shape=["batch", 2, "capacity", 4]),
        [
            "graphs.decoder.inputs: past_key_0: expected shape ['batch', 2, 'capacity', 3], found "
            "['batch', 2, 'capacity', 4]"
        ],
    ),
    "another dtype": (
        change_tensor("decoder", "position", dtype="float32"),
        ["graphs.decoder.inputs: position: expected int64, found float32"],
    ),
    "a graph missing": (
        lambda m: m["graphs"].pop("encoder"),
        ["graphs: expected encoder, decoder for kind sequence-to-sequence, found decoder"],
    ),
    "a graph too many": (
        lambda m: m["graphs"].update(other=m["graphs"]["encoder"]),
        ["graphs: expected encoder, decoder for kind sequence-to-sequence, found encoder, "],
    ),
    "more layers than the graphs have": (
        put(10**9, "model", "decoder_layers"),
        ["model.decoder_layers: found 1000000000, but the graphs have inputs for fewer layers"],
    ),
}


def candidates(number: int | str, vocabulary: int = 13, dtype: str = "float32") -> Plain:
    """A graph that selects candidates, as plain data."""
    return {
        "file": "decoder.onnx",
        "inputs": [tensor("logits", dtype, "batch", "query", vocabulary)],
        "outputs": [
            tensor("candidate_token", "int64", "batch", number),
            tensor("candidate_log_probability", "float32", "batch", number),
        ],
    }


def test_candidates_may_be_selected_by_a_graph(plain_manifest: Plain) -> None:
    plain_manifest["graphs"]["candidates"] = candidates(13)
    manifest = manifest_from_json(json.dumps(plain_manifest), "here")
    assert [*manifest.graphs] == ["encoder", "decoder", "candidates"]
    assert [*manifest.model_graphs] == ["encoder", "decoder"]


@pytest.mark.parametrize(
    ("graph", "problem"),
    [
        (candidates(14), "outputs: expected one number of candidates, at most 13, found 14"),
        (candidates("candidates"), "outputs: expected one number of candidates, at most 13, found"),
        (candidates(3, vocabulary=12), "inputs: logits: expected shape ['batch', 'query', 13]"),
        (candidates(3, dtype="float16"), "inputs: expected the decoder's logits"),
        (candidates(3) | {"outputs": []}, "outputs: no tensor with role candidate_token"),
        (candidates(0), "outputs: candidate_token: expected shape"),
    ],
)
def test_candidates_are_selected_from_the_decoders_logits(
    plain_manifest: Plain, graph: Plain, problem: str
) -> None:
    plain_manifest["graphs"]["candidates"] = graph
    with pytest.raises(BundleError, match=re.escape(f"graphs.candidates.{problem}")):
        manifest_from_json(json.dumps(plain_manifest), "here")


@pytest.mark.parametrize("name", INCONSISTENT)
def test_an_inconsistency_is_reported(plain_manifest: Plain, name: str) -> None:
    change, expected = INCONSISTENT[name]
    change(plain_manifest)
    problems = problems_of(json.dumps(plain_manifest))
    assert len(problems) == len(expected)
    for problem, start in zip(problems, expected, strict=True):
        assert problem.startswith(start)


def test_all_inconsistencies_are_reported_at_once(plain_manifest: Plain) -> None:
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


def test_the_highest_ids_and_the_longest_default_are_valid(plain_manifest: Plain) -> None:
    plain_manifest["model"] |= {"pad_token_id": 10, "start_token_id": 12, "end_token_id": 12}
    plain_manifest["default_max_new_tokens"] = 20
    assert isinstance(manifest_from_json(json.dumps(plain_manifest), "p"), Manifest)
