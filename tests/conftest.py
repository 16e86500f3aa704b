"""What holds for every test."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.onnx._internal.exporter import _registration as exporter

from dragoman.export import neutral_bundle
from dragoman.export.exporter import export_graph

from .exported_once import exported_once


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Models this small are slower on more, and many times so when the machine is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session", autouse=True)
def _heed_interrupts() -> Iterator[None]:
    """A shell starts background jobs deaf to SIGINT, and their children inherit it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def _operators_read_once() -> Iterator[None]:
    """The exporter reads its library of operators, which never changes, at every export: of a model
    this small that is a third of the time, and the suite exports a hundred."""
    registry = exporter.ONNXRegistry
    with pytest.MonkeyPatch.context() as patch:
        read = functools.cache(registry.from_torchlib)
        patch.setattr(registry, "from_torchlib", staticmethod(read))
        yield


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "exports"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _each_model_exported_once(request: pytest.FixtureRequest, exports: Path) -> Iterator[None]:
    """But for the tests of exporting itself."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.parent != Path(__file__).parent / "export":
            once = exported_once(export_graph, exports)
            patch.setattr(neutral_bundle, "export_graph", once)
        yield
