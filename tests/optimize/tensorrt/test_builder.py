"""Building an engine: progress, interruption, failures, graphs that are refused, timing caches."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest
from onnx import TensorProto
from onnx.helper import make_node

from dragoman.optimize.tensorrt.builder import (
    EngineError,
    build_engine,
    load_timing_cache,
    make_monitor,
    parse,
    save_timing_cache,
    timing_cache_file,
)
from dragoman.optimize.tensorrt.request import EngineOptions
from dragoman.runtime.backends.tensorrt.packages import Package, logger_of
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


INT64 = TensorProto.INT64


def _parse(rtx: Package, graph: object) -> object:
    builder = rtx.module.Builder(logger_of(rtx.module))
    return parse(rtx.module, builder, graph)  # type: ignore[arg-type]


def test_an_unsupported_operator_is_named_with_its_module(rtx: Package, graph: Graph) -> None:
    file = graph(
        [make_node("NonZero", ["x"], ["y"], name="found_here")],
        {"x": (FLOAT, [2, 3])},
        {"y": (INT64, [2, "n"])},
    )
    with pytest.raises(EngineError) as error:
        _parse(rtx, file)
    message = str(error.value)
    assert message.startswith("made.onnx: NonZero of decoder.layers.1 (node found_here) cannot be")


def test_a_file_that_is_not_a_graph(rtx: Package, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("x") / "none.onnx"
    file.write_bytes(b"not a graph")
    with pytest.raises(EngineError, match=r"none\.onnx: "):
        _parse(rtx, file)


def test_a_sound_graph_parses(rtx: Package, graph: Graph) -> None:
    file = graph([make_node("Relu", ["x"], ["y"])], {"x": (FLOAT, [2])}, {"y": (FLOAT, [2])})
    assert _parse(rtx, file).num_layers >= 1  # type: ignore[attr-defined]
    assert onnx.load(file).graph.node[0].op_type == "Relu"


TENSORRT = Package("tensorrt", SimpleNamespace(), "11.4.0.106", "13")


class Cache:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def serialize(self) -> bytes:
        return self.data


class Config:
    """Takes caches that begin with its version, as TensorRT does."""

    def __init__(self) -> None:
        self.cache: Cache | None = None

    def create_timing_cache(self, data: bytes) -> Cache:
        return Cache(data)

    def set_timing_cache(self, cache: Cache, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        if cache.data and not cache.data.startswith(b"11.4"):
            return False
        self.cache = cache
        return True

    def get_timing_cache(self) -> Cache | None:
        return self.cache


def test_a_build_reads_the_timings_of_an_earlier_one(tmp_path: Path) -> None:
    file = tmp_path / "new" / "cache"
    first, second = Config(), Config()
    assert load_timing_cache(first, file) is None
    assert first.cache is not None
    first.cache.data = b"11.4 timings"
    assert save_timing_cache(first, file) is None
    assert [p.name for p in file.parent.iterdir()] == ["cache"]
    assert load_timing_cache(second, file) is None
    assert second.cache is not None and second.cache.data == b"11.4 timings"


def test_a_cache_of_another_version_is_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "cache"
    file.write_bytes(b"10.16 timings")
    config = Config()
    warning = load_timing_cache(config, file)
    assert (
        warning is not None and str(file) in warning and "starting with an empty cache" in warning
    )
    assert config.cache is not None and config.cache.data == b""


def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    config = Config()
    load_timing_cache(config, tmp_path / "file" / "cache")
    warning = save_timing_cache(config, tmp_path / "file" / "cache")
    assert warning is not None and "timing cache not kept" in warning


def test_the_path_of_the_timing_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert timing_cache_file(TENSORRT) == tmp_path / "dragoman" / "tensorrt-11.4.0.106.timing"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert timing_cache_file(TENSORRT) == (
        Path.home() / ".cache" / "dragoman" / "tensorrt-11.4.0.106.timing"
    )
    rtx = Package("tensorrt-rtx", SimpleNamespace(), "1.7.1.116", "13")
    assert timing_cache_file(rtx) is None
