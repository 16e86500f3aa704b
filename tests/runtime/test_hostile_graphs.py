"""A bundle whose author means harm: every hash in it is right. It is refused before ONNX Runtime
sees its graphs."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from dragoman import api
from dragoman.reference_model import Transformer
from dragoman.runtime import BundleError, load, read_bundle
from dragoman.runtime.format.contract import GraphSpec
from dragoman.runtime.format.writing import write_manifest

from ..bundle_files import record_files

SOURCES = [[3, 4, 5], [6]]


@pytest.fixture
def bundle(ids_case: tuple[Transformer, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(ids_case[1], tmp_path / "bundle"))


@pytest.fixture
def never_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def reach(*arguments: object, **options: object) -> None:
        raise AssertionError("ONNX Runtime was given a graph")

    monkeypatch.setattr(onnxruntime, "InferenceSession", reach)


def rewrite(
    bundle: Path, change: Callable[[ModelProto], object], file: str = "decoder.onnx"
) -> None:
    """Change a graph, and record the hashes of what is there now."""
    manifest = read_bundle(bundle).manifest
    model = onnx.load(bundle / file, load_external_data=False)
    change(model)
    (bundle / file).write_bytes(model.SerializeToString())
    write_manifest(dataclasses.replace(manifest, files=record_files(bundle)), bundle)


def loop_for_ever(model: ModelProto) -> None:
    """A Loop whose condition stays true, and that does 2^63 - 1 rounds, before the logits."""
    graph = model.graph
    constants = {"rounds": 2**63 - 1, "forever": True}
    graph.initializer.extend(
        numpy_helper.from_array(np.array(value), name) for name, value in constants.items()
    )
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["condition"], ["again"]),
            helper.make_node("Identity", ["before"], ["after"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("round", TensorProto.INT64, []),
            helper.make_tensor_value_info("condition", TensorProto.BOOL, []),
            helper.make_tensor_value_info("before", TensorProto.INT64, ["batch", "query"]),
        ],
        [
            helper.make_tensor_value_info("again", TensorProto.BOOL, []),
            helper.make_tensor_value_info("after", TensorProto.INT64, ["batch", "query"]),
        ],
    )
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name == "token":
                node.input[index] = "token_at_last"
    loop = helper.make_node("Loop", ["rounds", "forever", "token"], ["token_at_last"], body=body)
    graph.node.insert(0, loop)


def test_a_graph_that_never_ends(bundle: Path, request: pytest.FixtureRequest) -> None:
    rewrite(bundle, loop_for_ever)
    onnxruntime.InferenceSession(bundle / "decoder.onnx")  # a graph like any other, to the library
    request.getfixturevalue("never_opened")
    with pytest.raises(BundleError) as caught:
        load(bundle, threads=1)
    (problem,) = caught.value.problems
    assert problem == (
        "decoder.onnx: operator 'Loop': expected one that this version of Dragoman writes "
        "(dragoman.runtime.format.onnx_graph)"
    )


@pytest.mark.usefixtures("never_opened")
def test_it_is_not_optimized_either(bundle: Path, tmp_path: Path) -> None:
    rewrite(bundle, loop_for_ever)
    with pytest.raises(BundleError, match="operator 'Loop'"):
        api.optimize(bundle, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_every_graph_and_every_problem_is_reported(bundle: Path) -> None:
    def loop(model: ModelProto) -> None:
        model.graph.node.append(helper.make_node("Loop", [], []))
        model.graph.node.append(helper.make_node("Call", [], [], domain="com.example"))

    rewrite(bundle, loop)
    (bundle / "encoder.onnx").write_bytes(b"not a graph")
    manifest = (bundle / "manifest.json").read_text()
    with pytest.raises(BundleError, match=r"encoder\.onnx: expected \d+ bytes, found 11"):
        read_bundle(bundle)
    assert (bundle / "manifest.json").read_text() == manifest
    with pytest.raises(BundleError) as caught:
        read_bundle(bundle)
    assert [p.partition(": exp")[0] for p in caught.value.problems] == [
        "decoder.onnx: operator 'Loop'",
        "decoder.onnx: operator 'com.example.Call'",
        "encoder.onnx",
    ]


def first_weight(model: ModelProto) -> TensorProto:
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            found: TensorProto = tensor
            return found
    raise AssertionError("expected a weight in weights.bin")


def stored_in(location: str) -> Callable[[ModelProto], None]:
    def change(model: ModelProto) -> None:
        for entry in first_weight(model).external_data:
            if entry.key == "location":
                entry.value = location

    return change


@pytest.mark.usefixtures("never_opened")
@pytest.mark.parametrize(
    "location", ["../weights.bin", "HERE/weights.bin", "other.bin", "a/../weights.bin"]
)
def test_weights_stored_elsewhere(bundle: Path, tmp_path: Path, location: str) -> None:
    """Also in a file of the bundle that is recorded."""
    for path in (tmp_path / "weights.bin", bundle / "other.bin"):
        shutil.copy(bundle / "weights.bin", path)
    rewrite(bundle, stored_in(location.replace("HERE", str(tmp_path))))
    with pytest.raises(
        BundleError, match=r"decoder\.onnx: tensor .*: expected to be stored in weig"
    ):
        load(bundle)


@pytest.mark.usefixtures("never_opened")
def test_weights_beyond_the_file(bundle: Path) -> None:
    def beyond(model: ModelProto) -> None:
        for entry in first_weight(model).external_data:
            if entry.key == "offset":
                entry.value = str((bundle / "weights.bin").stat().st_size - 1)

    rewrite(bundle, beyond)
    with pytest.raises(BundleError, match="expected offset and length within the"):
        load(bundle)


@pytest.mark.usefixtures("never_opened")
@pytest.mark.parametrize("name", ["weights.bin", "encoder.onnx"])
def test_a_link_to_a_file_outside(bundle: Path, tmp_path: Path, name: str) -> None:
    (bundle / name).rename(tmp_path / name)
    (bundle / name).symlink_to(tmp_path / name)
    with pytest.raises(BundleError) as caught:
        load(bundle)
    (problem,) = caught.value.problems
    assert (
        problem == f"{name}: expected a file inside the bundle, found a link to {tmp_path / name}"
    )


def test_a_link_to_itself(bundle: Path) -> None:
    (bundle / "weights.bin").unlink()
    (bundle / "weights.bin").symlink_to("weights.bin")
    with pytest.raises(BundleError, match=r"weights\.bin: cannot be read"):
        load(bundle)


def test_a_bundle_reached_by_a_link_is_read(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(bundle)
    with load(tmp_path / "current", threads=1) as model, load(bundle, threads=1) as same:
        assert model.generate(SOURCES) == same.generate(SOURCES)


def test_a_graph_is_onnx_whatever_its_name(bundle: Path) -> None:
    """By its name, ONNX Runtime would read another format, in which nothing was checked."""
    with load(bundle, threads=1) as model:
        expected = model.generate(SOURCES)
    manifest = read_bundle(bundle).manifest
    (bundle / "decoder.onnx").rename(bundle / "decoder.ort")
    graphs = manifest.graphs | {
        "decoder": dataclasses.replace(manifest.graphs["decoder"], file="decoder.ort")
    }
    changed = dataclasses.replace(manifest, graphs=graphs, files=record_files(bundle))
    write_manifest(changed, bundle)
    with load(bundle, threads=1) as model:
        assert model.generate(SOURCES) == expected


def test_a_pass_that_writes_another_operator(tmp_path: Path) -> None:
    """Found out when the bundle is made."""
    import onnx_ir as ir

    from dragoman.onnx_graphs.graph_files import write_graphs
    from dragoman.runtime.format.writing import BundleWriter

    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["": 24]> g (float[2] x) => (float[2] y) { y = Erf(x) }'
    )
    with pytest.raises(BundleError, match=r"encoder\.onnx: operator 'Erf'"):
        write_graphs(
            {"encoder": model},
            {"encoder": GraphSpec("encoder.onnx", (), ())},
            BundleWriter(tmp_path),
        )
    assert not (tmp_path / "encoder.onnx").exists()
