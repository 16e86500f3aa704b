"""What holds for every test."""

from __future__ import annotations

import functools
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.onnx._internal.exporter import _registration as exporter

from dragoman.export import neutral_bundle
from dragoman.export.exporter import export_graph

from .export_cache import cached_export, prune


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Models this small are slower on more, and many times so when the machine is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is read from the developer's cache, or left in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _heed_interrupts() -> Iterator[None]:
    """A shell starts background jobs deaf to SIGINT, nohup to SIGHUP, and their children, too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    hung_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, before)
    signal.signal(signal.SIGHUP, hung_up)


@pytest.fixture(scope="session", autouse=True)
def _operators_read_once() -> Iterator[None]:
    """The exporter reads its library of operators, which never changes, at every export: of a model
    this small that is a third of the time, and the suite exports a hundred."""
    registry = exporter.ONNXRegistry
    with pytest.MonkeyPatch.context() as patch:
        read = functools.cache(registry.from_torchlib)
        patch.setattr(registry, "from_torchlib", staticmethod(read))
        yield


@pytest.fixture(scope="session", autouse=True)
def _collect_seldom() -> Iterator[None]:
    """PyTorch and Transformers are a million objects, which every full collection of garbage visits
    in vain: a fifth of the time of the suite."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run that all workers share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


CACHED_EXPORT = cached_export(export_graph)
CACHING = pytest.MonkeyPatch()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture of a test: models that it does not seed are the same in every run, and
    exported graphs come from the cache, except in the tests of exporting itself."""
    torch.manual_seed(0)
    CACHING.undo()
    if item.path.parent != Path(__file__).parent / "export":
        CACHING.setattr(neutral_bundle, "export_graph", CACHED_EXPORT)


def pytest_sessionfinish() -> None:
    CACHING.undo()
    if "PYTEST_XDIST_WORKER" not in os.environ:
        prune()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from .scheduling import LongestFirst, ModelByModel

    kinds = {"loadfile": LongestFirst, "loadgroup": ModelByModel}
    kind = kinds.get(config.getvalue("dist"))
    return kind and kind(config, log)
