"""A local Ray cluster with two processors, and the bundle named by DRAGOMAN_BUNDLE.

Nothing here needs PyTorch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from dragoman.runtime import Model, load

collect_ignore_glob = [] if find_spec("ray") else ["test_*.py"]

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # none of several machines: 127.0.0.1


@pytest.fixture(scope="session")
def bundle() -> Path:
    return Path(os.environ["DRAGOMAN_BUNDLE"])


@pytest.fixture(scope="session")
def model(bundle: Path) -> Iterator[Model]:
    """The model that everything is compared with."""
    with load(bundle, threads=1) as model:
        yield model


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    from dragoman.runtime.serving.ray.files import connected

    with connected(None, 2):
        yield
