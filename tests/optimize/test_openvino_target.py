"""The target openvino: its graphs, their exact form, and what their manifest may say.

The oracle of a product is the rounding of its definition, that of a graph the PyTorch model.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from numpy.typing import NDArray

from dragoman.errors import DragomanError
from dragoman.export.neutral_bundle import export_bundle
from dragoman.onnx_graphs.graph_files import load_graph
from dragoman.optimize.exact import make_exact
from dragoman.optimize.openvino import QDQ, QDQForm
from dragoman.optimize.precision.int8 import FixedScale, RowScales
from dragoman.optimize.precision.rounding import round_weight
from dragoman.optimize.running import run
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.optimize.targets import choose_target, find_target
from dragoman.reference_model import EncoderModel, HeadConfig, ModelConfig
from dragoman.runtime import Bundle, read_bundle
from dragoman.runtime.format.manifest import Precision
from dragoman.verification.stored.built_as import built_as

Array = NDArray[np.float32]
LAYERS, VOCABULARY, POSITIONS = 2, 31, 20
HEADS = {
    "embeddings": HeadConfig(task="embedding", pooling=("mean",)),
    "masks": HeadConfig(task="masked-language-model", mask_token_id=3),
}


def model_with(head: HeadConfig) -> EncoderModel:
    """An encoder with heads of size 12."""
    torch.manual_seed(1)
    config = ModelConfig(
        source_vocab_size=VOCABULARY,
        target_vocab_size=0,
        encoder_layers=LAYERS,
        decoder_layers=0,
        d_model=36,
        num_heads=3,
        d_ff=50,
        max_source_positions=POSITIONS,
        max_target_positions=0,
        positions="learned",
        pad_token_id=0,
        head=head,
    )
    return EncoderModel(config).eval()


@pytest.fixture(scope="module", params=HEADS)
def neutral(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    model, directory = model_with(HEADS[request.param]), tmp_path_factory.mktemp(request.param)
    return export_bundle(model, directory, name=request.param)


@pytest.fixture(scope="module")
def int8(neutral: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return built(neutral, tmp_path_factory.mktemp("int8"), "int8", calibration=sources())


def built(neutral: Bundle, directory: Path, precision: Precision, **options: Any) -> Bundle:
    directory.mkdir(exist_ok=True)
    return optimize_bundle(neutral, directory, target="openvino", precision=precision, **options)


def sources() -> list[list[int]]:
    generator = np.random.default_rng(0)
    return [generator.integers(1, VOCABULARY, size).tolist() for size in (1, 7, POSITIONS, 3, 12)]


def test_operators_are_standard_and_counted(int8: Bundle) -> None:
    path = int8.graph_path("encoder")
    onnx.checker.check_model(path, full_check=True)
    graph = load_graph(path).graph
    assert {node.domain for node in graph} == {""}
    counts = Counter(node.op_type for node in graph)
    masks = int8.manifest.name == "masks"
    inputs = 4 * LAYERS + masks  # query, key and value read the same integers
    weights = 6 * LAYERS + masks
    assert counts["QuantizeLinear"] == inputs
    assert counts["DequantizeLinear"] == inputs + weights
    (record,) = int8.manifest.passes
    assert (record.name, record.matches) == ("weights-int8-qdq", weights + 1)
    assert {choice.chosen for choice in record.choices} == {"fixed scale"}


def test_a_table_is_stored_once(int8: Bundle) -> None:
    graph = load_graph(int8.graph_path("encoder")).graph
    tables = [v for v in graph.initializers.values() if v.shape == (VOCABULARY, 36)]
    assert [value.dtype for value in tables] == [ir.DataType.INT8]


def test_fp32_is_the_neutral_graph(neutral: Bundle, tmp_path: Path) -> None:
    graph = load_graph(built(neutral, tmp_path, "fp32").graph_path("encoder"))
    assert Counter(n.op_type for n in graph.graph) == Counter(
        n.op_type for n in load_graph(neutral.graph_path("encoder")).graph
    )


def test_the_exact_form_is_the_trained_model(neutral: Bundle, int8: Bundle) -> None:
    """With the checkpoint's weights: what is left of rounding would show."""
    held = load_graph(neutral.graph_path("encoder")).graph.initializers
    model = load_graph(int8.graph_path("encoder"))

    def replacement(name: str, own: Any) -> Array:
        value = held[name].const_value
        assert value is not None
        numbers = np.asarray(value.numpy(), np.float32)
        return numbers.T if getattr(own, "table", False) else numbers

    make_exact(model, replacement)
    source = np.random.default_rng(2).integers(1, VOCABULARY, (7, POSITIONS))
    mask = np.arange(POSITIONS) < np.array([[1], [20], [5], [7], [2], [11], [19]])
    found: dict[str, Any] = run(model, {"source": source, "source_mask": mask})
    with torch.no_grad():
        outputs = model_with(HEADS[int8.manifest.name])(
            torch.from_numpy(source), torch.from_numpy(mask)
        )
    for name, expected in zip(found, outputs, strict=True):
        value = expected.numpy()
        value, own = (value, found[name]) if value.ndim == 2 else (value[mask], found[name][mask])
        np.testing.assert_allclose(own, value, atol=2e-5)


@pytest.mark.parametrize("place", [1, 2], ids=["scale", "zero point"])
def test_the_exact_form_keeps_what_is_wrong(place: int, int8: Bundle) -> None:
    """A scale or a zero point with which integers are read, and not written."""
    given = {"source": np.array([[5, 6, 7]]), "source_mask": np.ones((1, 3), bool)}
    right, wrong = (load_graph(int8.graph_path("encoder")) for _ in range(2))
    node = next(
        node
        for node in wrong.graph
        if node.op_type == "DequantizeLinear" and node.inputs[0].producer() is not None  # type: ignore[union-attr]
    )
    value = node.inputs[place]
    assert value is not None and value.const_value is not None
    number: Any = value.const_value.numpy()
    other = ir.tensor((number * 1.02 if place == 1 else number + 1).astype(number.dtype), name="o")
    made = ir.Value(
        name="o", const_value=other, shape=ir.Shape(()), type=ir.TensorType(other.dtype)
    )
    wrong.graph.register_initializer(made)
    node.replace_input_with(place, made)
    for model in (right, wrong):
        make_exact(model)
    name = right.graph.outputs[0].name or ""
    one, other_one = (np.asarray(run(model, given)[name], float) for model in (right, wrong))
    assert np.abs(one - other_one).max() > 1e-4


@pytest.mark.parametrize("is_table", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(
    "activations", [FixedScale(0.031, 120), FixedScale(0.02, 0), RowScales()], ids=str
)
def test_a_product_is_that_of_rounded_numbers(
    activations: FixedScale | RowScales, with_bias: bool, is_table: bool
) -> None:
    """Where OpenVINO rounds inputs itself, the graph does not."""
    generator = np.random.default_rng(3)
    weight = generator.standard_normal((24, 10)).astype(np.float32)
    x = generator.standard_normal((7, 3, 24)).astype(np.float32)
    bias = generator.standard_normal(10).astype(np.float32) if with_bias else None
    value = ir.Value(name="x", shape=ir.Shape(x.shape), type=ir.TensorType(ir.DataType.FLOAT))
    graph = ir.Graph([value], [], nodes=[], opset_imports={"": 21}, name="g")
    added = None
    if bias is not None:
        added = ir.Value(name="bias", const_value=ir.tensor(bias), shape=ir.Shape(bias.shape))
        graph.register_initializer(added)
    form, rounded = QDQForm(activations, ""), round_weight(weight, bits=QDQ.bits)
    make = form.table_product if is_table else form.product
    nodes = make(graph, "w", rounded, value, added)
    graph.extend(nodes)
    y = nodes[-1].outputs[0]
    y.name, y.type = "y", ir.TensorType(ir.DataType.FLOAT)
    graph.outputs.append(y)
    found: Any = run(ir.Model(graph, ir_version=10), {"x": x})["y"]
    read: Any = activations.round(x.reshape(-1, 24)) if isinstance(activations, FixedScale) else x
    expected = read.reshape(-1, 24) @ rounded.dequantized() + (0 if bias is None else bias)
    np.testing.assert_allclose(found.reshape(-1, 10), expected, atol=2e-5)


@pytest.mark.parametrize(
    ("target", "precision"), [("neutral", "int8"), ("cpu", "int8"), ("openvino", "fp32")]
)
def test_another_target_or_precision_is_contradicted(
    target: str, precision: Any, int8: Bundle
) -> None:
    models = {"encoder": load_graph(int8.graph_path("encoder"))}
    assert not any(built_as(int8.manifest, models, 36))
    stated = dataclasses.replace(int8.manifest, target=target, precision=precision)
    assert any(built_as(stated, models, 36))


def test_targets_by_precision() -> None:
    assert choose_target(None, "int8").name == "cpu"
    assert choose_target("openvino", "int8").name == "openvino"
    with pytest.raises(DragomanError) as caught:
        choose_target("openvino", "fp16")
    assert str(caught.value) == "target openvino: expected precision fp32, int8, found fp16"


def test_a_bundle_with_a_decoder_is_refused(neutral: Bundle, tmp_path: Path) -> None:
    assert not neutral.manifest.model.has_decoder
    find_target("openvino").check_source(neutral, "int8")
    with pytest.raises(DragomanError) as caught:
        find_target("openvino").check_model(has_decoder=True)
    assert str(caught.value) == (
        "target openvino: expected an encoder-only model, found one with a decoder"
    )
    with pytest.raises(DragomanError, match="expected a neutral bundle in fp32"):
        built(read_bundle(built(neutral, tmp_path / "a", "int8").directory), tmp_path / "b", "int8")
