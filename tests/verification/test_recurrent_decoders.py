"""Recurrent decoders in every precision: right bundles pass, faults of their states are found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from dragoman.errors import DragomanError
from dragoman.export import export_bundle
from dragoman.onnx_graphs.graph_files import load_graph, write_graphs
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import Transformer
from dragoman.runtime import Model, load, read_bundle
from dragoman.runtime.backends import check_backend, default_backend, open_backend
from dragoman.runtime.backends.onnxruntime.cpu_state import HostState
from dragoman.runtime.format.parity import Check
from dragoman.runtime.format.writing import ScratchWriter
from dragoman.verification.numerics.checking import check_numerics
from dragoman.verification.numerics.probes import Probe

MakeModel = Callable[..., Transformer]
Pair = tuple[Transformer, Model]

INPUTS = [Probe([3, 5, 2], [1, 4, 4, 9, 2, 6], "on one")]


KINDS = ["ssru", "gru", "gru, additive scores"]


@pytest.fixture(scope="module")
def pairs(make_model: MakeModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """Of each kind, exported once; with the graph of attention, unless scores are additive."""
    made = {}
    for name in KINDS:
        kind, _, additive = name.partition(", ")
        reference = make_model(decoder_kind=kind, decoder_layers=2, additive_scores=bool(additive))
        directory = tmp_path_factory.mktemp("recurrent")
        bundle = export_bundle(reference, directory, name="test", attention=not additive)
        made[name] = reference, load(bundle, threads=1)
    return made


@pytest.fixture
def pair(request: pytest.FixtureRequest, pairs: dict[str, Pair]) -> Pair:
    return pairs[getattr(request, "param", "ssru")]


def checked(reference: Transformer, model: Model) -> dict[str, Check]:
    checks, _ = check_numerics(model, model.bundle, reference, INPUTS, "onnxruntime", 1)
    return {check.name: check for check in checks}


@pytest.mark.parametrize(
    ("target", "precision"),
    [("cpu", "fp32"), ("cpu", "int8"), ("cpu", "int4"), ("neutral", "fp16"), ("neutral", "int8")],
)
@pytest.mark.parametrize("pair", KINDS, indirect=True)
def test_right_bundles_pass(target: str, precision: Any, pair: Pair, tmp_path: Path) -> None:
    reference, neutral = pair
    bundle = optimize_bundle(neutral.bundle, tmp_path, target=target, precision=precision)
    assert all(record.not_compared == () for record in bundle.manifest.passes)
    with load(tmp_path, threads=1) as model:
        states = [t for t in model.manifest.graphs["decoder"].inputs if t.role == "past_state"]
        assert {(t.dtype, t.shape) for t in states} == {
            ("float32", ("batch", reference.config.d_model))
        }
        found = checked(reference, model)
    assert {"graphs", "steps", "scores", "batches"} <= found.keys()
    assert ("attention" in found) == (not reference.config.additive_scores)
    assert not [check.problem for check in found.values() if not check.passed]


def checked_with(
    damage: Callable[[ir.Graph], None], pair: Pair, directory: Path
) -> dict[str, Check]:
    """Check a bundle whose decoder is damaged."""
    reference, model = pair
    bundle = model.bundle
    graphs = {name: load_graph(bundle.graph_path(name)) for name in bundle.manifest.graphs}
    damage(graphs["decoder"].graph)
    files = ScratchWriter(directory)
    write_graphs(graphs, bundle.manifest.graphs, files)
    damaged = files.finish(bundle.manifest)
    with Model(damaged, open_backend(damaged, "onnxruntime", 1)) as wrong_model:
        return checked(reference, wrong_model)


def nodes(graph: ir.Graph, operator: str) -> list[ir.Node]:
    return [node for node in graph if node.op_type == operator]


def another_gate(scans: list[ir.Node]) -> None:
    """The gate is what is added."""
    scans[0].replace_input_with(1, scans[0].inputs[2])


def another_update(scans: list[ir.Node]) -> None:
    """What is added is the gate."""
    scans[0].replace_input_with(2, scans[0].inputs[1])


def another_layer(scans: list[ir.Node]) -> None:
    """The second layer begins with the state of the first."""
    scans[1].replace_input_with(0, scans[0].inputs[0])


@pytest.mark.parametrize("damage", [another_gate, another_update, another_layer])
def test_wrong_states_are_found(
    damage: Callable[[list[ir.Node]], None], pair: Pair, tmp_path: Path
) -> None:
    found = checked_with(lambda graph: damage(nodes(graph, "Scan")), pair, tmp_path)
    wrong = [name for name, check in found.items() if not check.passed]
    assert "graphs" in wrong or "steps" in wrong


def without_its_state(unit: ir.Node) -> None:
    """The second layer's unit begins with a state of zeros."""
    unit.replace_input_with(5, None)


def with_the_gates_of_another(unit: ir.Node) -> None:
    """The products of the state take the place of those of the input."""
    unit.replace_input_with(1, unit.inputs[2])


def reset_before_the_product(unit: ir.Node) -> None:
    """n_t = tanh(W_n x_t + U_n (r_t * h_(t-1))), as Cho et al. have it."""
    unit.attributes.add(ir.AttrInt64("linear_before_reset", 0))


@pytest.mark.parametrize(
    "damage", [without_its_state, with_the_gates_of_another, reset_before_the_product]
)
@pytest.mark.parametrize("pair", ["gru"], indirect=True)
def test_wrong_gated_units_are_found(
    damage: Callable[[ir.Node], None], pair: Pair, tmp_path: Path
) -> None:
    found = checked_with(lambda graph: damage(nodes(graph, "GRU")[1]), pair, tmp_path)
    wrong = [name for name, check in found.items() if not check.passed]
    assert "graphs" in wrong or "steps" in wrong


def test_a_state_that_is_lost_between_steps_is_found(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, model = pair
    advance = HostState.advance

    def forgetful(state: HostState) -> Any:
        for slot in state._states[:1]:
            state._buffers[slot].array[:] = 0
        return advance(state)

    monkeypatch.setattr(HostState, "advance", forgetful)
    found = checked(reference, model)
    assert found["graphs"].passed and not found["steps"].passed
    assert "a step through the cache is not one pass" in found["steps"].problem


def test_states_that_do_not_follow_their_beams_are_found(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, model = pair
    monkeypatch.setattr(HostState, "reorder", lambda state, parents: None)
    found = checked(reference, model)
    assert found["batches"].passed and not found["steps"].passed
    assert "a step through the cache is not one pass" in found["steps"].problem


def test_weights_of_additive_scores_cannot_be_shown(pairs: dict[str, Pair], tmp_path: Path) -> None:
    reference, _ = pairs["gru, additive scores"]
    with pytest.raises(DragomanError, match="expected scaled dot products, found other scores in "):
        export_bundle(reference, tmp_path, name="test", attention=True)


def test_targets_and_backends_of_a_gpu_take_them(pair: Pair, tmp_path: Path) -> None:
    """How they compute: tests/runtime/backends/test_states_on_a_gpu.py."""
    _, model = pair
    assert default_backend(model.bundle) == "onnxruntime"
    check_backend(model.bundle, "onnxruntime-cuda")
    optimize_bundle(model.bundle, tmp_path, target="tensorrt-rtx", precision="fp16")
    graphs = read_bundle(tmp_path).manifest
    assert (graphs.target, graphs.model.state_size) == ("tensorrt-rtx", 24)
