"""A model on doubles of every library that runs on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.reference_model import Transformer
from dragoman.runtime import Bundle, Model, read_bundle

from ... import provider_double
from ...device_double import DoubleDevice
from .gpu_models import ENGINES, engines_of, opened

Case = tuple[Transformer, Path]
Open = Callable[[DoubleDevice], Model]


@pytest.fixture(scope="session")
def engines(ids_case: Case, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle whose engines the double runs."""
    return engines_of(ids_case[1], tmp_path_factory, ENGINES)


@pytest.fixture(params=["tensorrt-rtx", "onnxruntime-cuda"])
def open_on(
    request: pytest.FixtureRequest,
    engines: Bundle,
    ids_case: Case,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Open:
    """Opens the model on a device."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if request.param == "tensorrt-rtx":
        return lambda device: opened(engines, device)
    bundle = read_bundle(ids_case[1])
    return lambda device: provider_double.opened(bundle, device)


@pytest.fixture
def device() -> DoubleDevice:
    return DoubleDevice()


@pytest.fixture
def model(open_on: Open, device: DoubleDevice) -> Model:
    return open_on(device)
