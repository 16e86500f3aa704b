"""Progress, interruption and failure of a build."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from onnx import TensorProto
from onnx.helper import make_node

from dragoman.optimize.engine_options import EngineOptions
from dragoman.optimize.tensorrt.builder import build_engine
from dragoman.optimize.tensorrt.parser import EngineError
from dragoman.optimize.tensorrt.progress import make_monitor
from dragoman.runtime.backends.tensorrt.packages import Package
from dragoman.runtime.format.contract import GraphSpec, TensorSpec

from .conftest import Graph

FLOAT = TensorProto.FLOAT
SPEC = GraphSpec("made.onnx", (TensorSpec("x", "source", "float32", ("batch", 4)),), ())


@pytest.fixture
def relu(graph: Graph) -> Path:
    return graph(
        [make_node("Relu", ["x"], ["y"])],
        {"x": (FLOAT, ["batch", 4])},
        {"y": (FLOAT, ["batch", 4])},
    )


def test_progress_is_reported(rtx: Package, relu: Path, one_profile: EngineOptions) -> None:
    reported: list[tuple[str, float]] = []
    build_engine(rtx, relu, SPEC, one_profile, progress=lambda *what: reported.append(what))
    assert reported and all(0.0 <= share <= 1.0 for _, share in reported)


def test_an_interruption_ends_the_build(
    rtx: Package, relu: Path, one_profile: EngineOptions
) -> None:
    reported: list[str] = []

    def interrupt(phase: str, share: float) -> None:
        if not reported:
            os.kill(os.getpid(), signal.SIGINT)
        reported.append(phase)

    with pytest.raises(KeyboardInterrupt):
        build_engine(rtx, relu, SPEC, one_profile, progress=interrupt)


def test_a_cancelled_build_stops_at_the_next_step(rtx: Package) -> None:
    cancelled = threading.Event()
    reported: list[tuple[str, float]] = []
    monitor = make_monitor(rtx.module, lambda *what: reported.append(what), cancelled)
    monitor.phase_start("tactics", None, 4)
    assert monitor.step_complete("tactics", 0)
    cancelled.set()
    assert not monitor.step_complete("tactics", 1)
    assert reported == [("tactics", 0.0), ("tactics", 0.25), ("tactics", 0.5)]


def test_a_failed_build_gives_the_reason(
    rtx: Package, graph: Graph, one_profile: EngineOptions
) -> None:
    """A cache that is not an input of the network: the parser takes it, the builder does not."""
    file = graph(
        [
            make_node("Relu", ["x"], ["cache"]),
            make_node("TensorScatter", ["cache", "new", "at"], ["y"], axis=2),
        ],
        {
            "x": (FLOAT, [1, 2, 8, 4]),
            "new": (FLOAT, [1, 2, 1, 4]),
            "at": (TensorProto.INT64, [1]),
        },
        {"y": (FLOAT, [1, 2, 8, 4])},
    )
    with pytest.raises(EngineError, match=r"made\.onnx: (tensorrt-rtx|TensorScatter)"):
        build_engine(rtx, file, GraphSpec("made.onnx", (), ()), one_profile)


def test_a_dropped_input_is_an_error(
    rtx: Package, graph: Graph, one_profile: EngineOptions
) -> None:
    """The parser ignores the seventh input of Attention, nonpad_kv_seqlen, and only warns."""
    attention = make_node("Attention", ["q", "k", "v", "", "", "", "lengths"], ["y"])
    shapes = dict.fromkeys("qkv", (FLOAT, [1, 2, 3, 8]))
    file = graph(
        [attention], {**shapes, "lengths": (TensorProto.INT64, [1])}, {"y": (FLOAT, [1, 2, 3, 8])}
    )
    with pytest.raises(EngineError, match="would ignore the input lengths"):
        build_engine(rtx, file, GraphSpec("made.onnx", (), ()), one_profile)
