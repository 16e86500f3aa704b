"""New weights for engines. That needs a GPU; a double with the recorded API stands in for it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import DragomanError
from dragoman.optimize.tensorrt import engine_bundle as refitting
from dragoman.optimize.tensorrt.builder import EngineError, build_engine
from dragoman.optimize.tensorrt.engine_bundle import build_engines, refit, refit_engines
from dragoman.optimize.tensorrt.request import EngineOptions
from dragoman.runtime import Bundle, read_bundle
from dragoman.runtime.backends.tensorrt.packages import Package
from dragoman.runtime.format.manifest import TensorRTEngines
from dragoman.runtime.format.writing import write_manifest

from ...tensorrt_api import checked_module, recorded
from ..conftest import Optimize

ENGINE, NEW = b"an engine", b"an engine with new weights"


class Double:
    """A package whose engines take the weights of any ONNX file that is not named `other`."""

    __version__ = "11.4.0.106"
    missing: tuple[str, ...] = ()
    loads = True

    class ILogger:
        class Severity:
            ERROR, INTERNAL_ERROR, WARNING = range(3)

    class ICudaEngine:
        plan = ENGINE

        def serialize(self) -> bytes:
            return self.plan

    class Runtime:
        def __init__(self, logger: Any) -> None:
            pass

        def deserialize_cuda_engine(self, serialized_engine: bytes) -> Any:
            return Double.ICudaEngine() if Double.loads else None

    class Refitter:
        def __init__(self, engine: Any, logger: Any) -> None:
            self.engine = engine

        def get_missing_weights(self) -> list[str]:
            return list(Double.missing)

        def refit_cuda_engine(self) -> bool:
            self.engine.plan = NEW
            return True

    class ParserError:
        def desc(self) -> str:
            return "weights decoder.bias have another size"

    class OnnxParserRefitter:
        num_errors = 1

        def __init__(self, refitter: Any, logger: Any) -> None:
            pass

        def refit_from_file(self, model: str) -> bool:
            return "other" not in model

        def get_error(self, index: int) -> Any:
            return Double.ParserError()


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Package:
    monkeypatch.setattr(Double.ILogger, "__init__", lambda self: None)
    module = checked_module(Double, recorded("tensorrt-11.4.0.106"))
    return Package("tensorrt", module, "11.4.0.106", "13")


def test_an_engine_gets_new_weights(package: Package, tmp_path: Path) -> None:
    (tmp_path / "x.engine").write_bytes(ENGINE)
    assert refit(package, tmp_path / "x.engine", tmp_path / "new.onnx") == NEW


def test_weights_that_do_not_fit_are_named(package: Package, tmp_path: Path) -> None:
    (tmp_path / "x.engine").write_bytes(ENGINE)
    with pytest.raises(EngineError, match=r"rebuild it: weights decoder\.bias have another"):
        refit(package, tmp_path / "x.engine", tmp_path / "other.onnx")


def test_weights_that_the_graph_lacks_are_named(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.engine").write_bytes(ENGINE)
    monkeypatch.setattr(Double, "missing", ("encoder.gain", "encoder.bias"))
    with pytest.raises(EngineError, match=r"lacks the weights encoder\.gain, encoder\.bias"):
        refit(package, tmp_path / "x.engine", tmp_path / "new.onnx")


def test_an_engine_that_cannot_be_loaded_is_an_error(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.engine").write_bytes(ENGINE)
    monkeypatch.setattr(Double, "loads", False)
    with pytest.raises(EngineError, match="cannot be loaded"):
        refit(package, tmp_path / "x.engine", tmp_path / "new.onnx")


def test_a_bundle_gets_new_weights(
    neutral: Bundle,
    optimize: Optimize,
    package: Package,
    tmp_path: Path,
    one_profile: EngineOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graphs = optimize(neutral, "fp16", "tensorrt-rtx")
    old = _engines(graphs, tmp_path, one_profile, refittable=True)
    monkeypatch.setattr(refitting, "usable_package", lambda bundle, engines: package)
    new = tmp_path / "new"
    new.mkdir()
    read = refit_engines(old, graphs, new)
    assert read == read_bundle(new)
    assert read.manifest.executable == old.manifest.executable
    assert read.manifest.graphs == old.manifest.graphs
    assert (new / "decoder.engine").read_bytes() == NEW
    assert read.manifest.parity is None


def test_bundles_that_cannot_be_refitted_are_refused(
    neutral: Bundle, optimize: Optimize, tmp_path: Path, one_profile: EngineOptions
) -> None:
    graphs = optimize(neutral, "fp16", "tensorrt-rtx")
    fixed = _engines(graphs, tmp_path, one_profile, refittable=False)
    with pytest.raises(DragomanError, match=r"cannot be refitted: .*--refittable"):
        refit_engines(fixed, graphs, tmp_path)
    with pytest.raises(DragomanError, match="expected engines to refit, found graphs"):
        refit_engines(graphs, graphs, tmp_path)
    refittable = _engines(graphs, tmp_path, one_profile, refittable=True)
    changes: dict[str, Any] = {
        "precision": "bf16",
        "target": "tensorrt",
        "architecture": {"d_model": 3},
    }
    for name, value in changes.items():
        change: Any = {name: value}
        manifest = dataclasses.replace(graphs.manifest, **change)
        other = dataclasses.replace(graphs, manifest=manifest)
        with pytest.raises(DragomanError, match=f"need the same {name}"):
            refit_engines(refittable, other, tmp_path)
    generation = dataclasses.replace(graphs.manifest.generation, suppressed_token_ids=(7,))
    other = dataclasses.replace(
        graphs, manifest=dataclasses.replace(graphs.manifest, generation=generation)
    )
    with pytest.raises(DragomanError, match="need the same suppressed tokens"):
        refit_engines(refittable, other, tmp_path)


def test_a_refittable_build_needs_a_gpu(
    neutral: Bundle, optimize: Optimize, tmp_path: Path, rtx: Package, one_profile: EngineOptions
) -> None:
    graphs = optimize(neutral, "fp16", "tensorrt-rtx")
    wanted = dataclasses.replace(one_profile, refittable=True)
    encoder = graphs.manifest.graphs["encoder"]
    with pytest.raises(
        EngineError, match="refittable engines can only be built on a machine with a GPU"
    ):
        build_engine(rtx, graphs.path(encoder.file), encoder, wanted)


def _engines(
    graphs: Bundle, directory: Path, options: EngineOptions, *, refittable: bool
) -> Bundle:
    """Real engines whose manifest says whether they are refittable; building such needs a GPU."""
    path = directory / f"engines-{refittable}"
    path.mkdir()
    manifest = build_engines(graphs, path, options).bundle.manifest
    assert isinstance(manifest.executable, TensorRTEngines)
    engines = dataclasses.replace(manifest.executable, refittable=refittable)
    write_manifest(dataclasses.replace(manifest, executable=engines), path)
    return read_bundle(path)
