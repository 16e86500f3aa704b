"""Bundles of schema 2, whose graphs have one axis for rows and sources, are still read. The neutral
one in `schema_2/` was written by the last version that wrote them, which decoded it to
`expected.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.runtime import Bundle, load, read_bundle
from dragoman.runtime.format.manifest import SCHEMA_VERSION
from dragoman.runtime.format.schema_2 import upgrade

DIRECTORY = Path(__file__).parent / "schema_2"


@pytest.fixture
def bundle() -> Bundle:
    return read_bundle(DIRECTORY / "bundle")


def plain() -> dict[str, Any]:
    data: dict[str, Any] = json.loads((DIRECTORY / "bundle" / "manifest.json").read_text())
    assert data["schema_version"] == 2
    return data


def assert_decodes_as_expected(bundle: Bundle) -> None:
    expected = json.loads((DIRECTORY / "expected.json").read_text())
    results = load(bundle.directory, threads=1).generate([case["source"] for case in expected])
    for result, case in zip(results, expected, strict=True):
        assert list(result.tokens) == case["tokens"]
        assert result.finish_reason == case["finish_reason"]
        assert result.log_probability == pytest.approx(case["log_probability"], abs=1e-4)


def test_a_bundle_is_read_as_one_of_the_present_schema(bundle: Bundle) -> None:
    assert bundle.manifest.schema_version == SCHEMA_VERSION
    written = json.loads(bundle.manifest.to_json())
    assert written | {"schema_version": 2} == plain()


def test_its_rows_have_sources_of_their_own(bundle: Bundle) -> None:
    decoder = bundle.manifest.graphs["decoder"]
    assert decoder.input("cross_key").shape == ("batch", 2, "source", 8)
    assert not decoder.shares_sources


def test_it_generates_the_same_tokens(bundle: Bundle) -> None:
    assert_decodes_as_expected(bundle)


def test_it_is_optimized_as_it_is(bundle: Bundle, tmp_path: Path) -> None:
    optimize_bundle(bundle, tmp_path)
    optimized = read_bundle(tmp_path)
    decoder = ir.load(optimized.graph_path("decoder")).graph
    operators = [node.op_type for node in decoder]
    assert operators.count("MultiHeadAttention") == operators.count("GroupQueryAttention") == 1
    assert "Reshape" not in operators
    assert not optimized.manifest.graphs["decoder"].shares_sources
    assert_decodes_as_expected(optimized)


def test_an_upgrade_does_not_change_its_argument() -> None:
    old = plain()
    assert upgrade(old)["schema_version"] == 3
    assert old == plain()
