"""Recurrent decoders in every precision: right bundles pass, faults of their states are found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from dragoman.errors import DragomanError
from dragoman.onnx_graphs.graph_files import load_graph, write_graphs
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import Transformer
from dragoman.runtime import BackendError, Model, load
from dragoman.runtime.backends import check_backend, default_backend, open_backend
from dragoman.runtime.backends.onnxruntime.cpu_state import HostState
from dragoman.runtime.format.parity import Check
from dragoman.runtime.format.writing import ScratchWriter
from dragoman.verification.numerics.checking import check_numerics
from dragoman.verification.numerics.probes import Probe

MakeModel = Callable[..., Transformer]
Pair = tuple[Transformer, Model]

INPUTS = [Probe([3, 5, 2], [1, 4, 4, 9, 2, 6], "on one")]


@pytest.fixture(scope="module")
def pair(make_model: MakeModel, make_bundle: Callable[[Transformer], Model]) -> Pair:
    reference = make_model(decoder_kind="ssru", decoder_layers=2)
    return reference, make_bundle(reference)


def checked(reference: Transformer, model: Model) -> dict[str, Check]:
    checks, _ = check_numerics(model, model.bundle, reference, INPUTS, "onnxruntime", 1)
    return {check.name: check for check in checks}


@pytest.mark.parametrize(
    ("target", "precision"),
    [("cpu", "fp32"), ("cpu", "int8"), ("cpu", "int4"), ("neutral", "fp16"), ("neutral", "int8")],
)
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
    assert all(check.passed for check in found.values())


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
    reference, model = pair
    bundle = model.bundle
    graphs = {name: load_graph(bundle.graph_path(name)) for name in bundle.manifest.graphs}
    damage([node for node in graphs["decoder"].graph if node.op_type == "Scan"])
    files = ScratchWriter(tmp_path)
    write_graphs(graphs, bundle.manifest.graphs, files)
    damaged = files.finish(bundle.manifest)
    with Model(damaged, open_backend(damaged, "onnxruntime", 1)) as wrong_model:
        found = checked(reference, wrong_model)
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


def test_a_gpu_refuses_them(pair: Pair, tmp_path: Path) -> None:
    _, model = pair
    assert default_backend(model.bundle) == "onnxruntime"
    with pytest.raises(BackendError, match="its decoder is recurrent: expected backend onnxruntim"):
        check_backend(model.bundle, "onnxruntime-cuda")
    with pytest.raises(DragomanError, match="target tensorrt-rtx: expected a decoder with self-a"):
        optimize_bundle(model.bundle, tmp_path, target="tensorrt-rtx", precision="fp16")
