"""`dragoman optimize`: bundles for a target, and anyone's ONNX file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import onnx_ir as ir
import pytest

from dragoman.runtime import read_bundle

Dragoman = Callable[..., CompletedProcess[str]]

GELU = """<ir_version: 8, opset_import: ["" : 17]> g (float[batch,5] x) => (float[batch,5] y) {
    root = Constant<value_float=1.41421356>() one = Constant<value_float=1.0>()
    half = Constant<value_float=0.5>()
    a = Div(x, root) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, half) }"""


@pytest.fixture
def gelu_file(tmp_path: Path) -> Path:
    path = tmp_path / "gelu.onnx"
    ir.save(ir.from_onnx_text(GELU), path)
    return path


def operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in ir.load(path).graph)


def test_a_neutral_bundle_in_eight_bits(
    dragoman: Dragoman, checkpoint: Path, tmp_path: Path
) -> None:
    neutral, output, report = tmp_path / "neutral", tmp_path / "int8", tmp_path / "report.json"
    assert dragoman("export", checkpoint, "-o", neutral).returncode == 0
    outcome = dragoman("optimize", neutral, "-o", output, "--precision", "int8", "--report", report)
    assert outcome.returncode == 0
    assert outcome.stdout.splitlines()[-1].startswith(f"Optimized {output}, not verified")
    manifest = read_bundle(output).manifest
    assert (manifest.target, manifest.precision, manifest.parity) == ("cpu", "int8", None)
    recorded = json.loads(report.read_text("utf-8"))
    assert [r["name"] for r in recorded] == [r.name for r in manifest.passes]
    assert "cached-self-attention" in outcome.stdout
    assert len(dragoman("run", output, "dragoman").stdout.splitlines()) == 1
    again = dragoman("optimize", output, "-o", tmp_path / "twice")
    assert again.returncode == 2
    assert "expected a neutral bundle in fp32, found target cpu, precision int8" in again.stderr
    assert not (tmp_path / "twice").exists()


def test_an_onnx_file_and_its_report(dragoman: Dragoman, gelu_file: Path, tmp_path: Path) -> None:
    output = tmp_path / "fused.onnx"
    outcome = dragoman("optimize", gelu_file, "-o", output, "--target", "neutral")
    assert outcome.returncode == 0, outcome.stderr
    assert operators(output) == {"Gelu": 1}
    assert "gelu" in outcome.stdout
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix) == [
        "fused.onnx",
        "gelu.onnx",
    ]


NEVER = """<ir_version: 8, opset_import: ["" : 17]>
g (float[b,5] x) => (float[b,5] y, float[b,5] z) {
    q = Mul(x, x) s = ReduceSum<keepdims=0>(q) n = Constant<value_float=-1.0>() c = Less(s, n)
    y, z = If(c) <then_branch: graph = t () => (float[b,5] p, float[b,5] r) {
        p = Relu(x) r = Identity(p) }, else_branch: graph = e () => (float[b,5] u, float[b,5] v) {
        u = Neg(x) v = Identity(u) }> }"""


def test_a_branch_that_was_not_compared_is_named(dragoman: Dragoman, tmp_path: Path) -> None:
    source, output, report = (tmp_path / name for name in ("if.onnx", "fused.onnx", "report.json"))
    ir.save(ir.from_onnx_text(NEVER), source)
    outcome = dragoman("optimize", source, "-o", output, "--report", report)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert "not compared: then_branch of If y: no input was found" in outcome.stdout
    recorded = json.loads(report.read_text("utf-8"))
    assert {tuple(record["not_compared"]) for record in recorded} == {("then_branch of If y",)}
    assert [value.name for value in ir.load(output).graph.outputs] == ["y", "z"]


def test_an_existing_file_is_replaced_only_with_force(
    dragoman: Dragoman, gelu_file: Path, tmp_path: Path
) -> None:
    output = tmp_path / "fused.onnx"
    output.write_bytes(b"precious")
    outcome = dragoman("optimize", gelu_file, "-o", output)
    assert outcome.returncode == 2
    assert "already exists" in outcome.stderr
    assert output.read_bytes() == b"precious"
    assert dragoman("optimize", gelu_file, "-o", output, "--force").returncode == 0
    assert operators(output)["Gelu"] == 1


@pytest.mark.parametrize("content", [b"", b"not onnx", None])
def test_a_file_that_is_not_onnx(dragoman: Dragoman, tmp_path: Path, content: bytes | None) -> None:
    source = tmp_path / "model.onnx"
    if content is not None:
        source.write_bytes(content)
    outcome = dragoman("optimize", source, "-o", tmp_path / "out.onnx")
    assert outcome.returncode == 2
    (line,) = outcome.stderr.splitlines()
    assert line.startswith(f"Error: {source}: expected an ONNX file")
    assert not (tmp_path / "out.onnx").exists()


def test_precision_of_a_lone_file_is_refused(
    dragoman: Dragoman, gelu_file: Path, tmp_path: Path
) -> None:
    outcome = dragoman("optimize", gelu_file, "-o", tmp_path / "o.onnx", "--precision", "int8")
    assert outcome.returncode == 2
    assert "needs a bundle" in outcome.stderr


@pytest.mark.parametrize(
    "target, precision, expected",
    [("cpu", "fp16", "fp32, int8, int4"), ("cpu", "bf16", "fp32, int8, int4")],
)
def test_build_refuses_a_precision_that_the_target_lacks(
    dragoman: Dragoman, checkpoint: Path, tmp_path: Path, target: str, precision: str, expected: str
) -> None:
    output = tmp_path / "out"
    outcome = dragoman(
        "build", checkpoint, "-o", output, "--target", target, "--precision", precision
    )
    assert outcome.returncode == 2
    assert f"target {target}: expected precision {expected}, found {precision}" in outcome.stderr
    assert list(tmp_path.iterdir()) == []
