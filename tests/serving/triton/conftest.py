"""Models as Triton's Python backend runs them, with a double of what it gives them."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.runtime.serving.triton.repository import Deployment, write_repository

from . import backend_double

Start = Callable[..., Any]


@pytest.fixture
def start(
    bundle: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Start]:
    """A model of a written repository, as Triton starts it; it is finalized with the test.

    Args:
        name: of a bundle
        parameters: of the configuration
        gpu: number of the GPU of the instance, which runs the neutral graphs
    """
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", backend_double)
    monkeypatch.setattr(backend_double.Logger, "lines", [])
    models: list[Any] = []

    def start(
        name: str = "letters",
        *,
        streaming: bool = True,
        parameters: dict[str, str] | None = None,
        gpu: int | None = None,
    ) -> Any:
        repository = tmp_path / f"repository-{len(models)}"
        deployment = Deployment(workers=1, threads=1, streaming=streaming)
        directory = bundle(name) if gpu is None else bundle(name).with_name(f"{name}-neutral")
        write_repository({name: directory}, repository, deployment, link=True)
        spec = importlib.util.spec_from_file_location("model", repository / name / "1" / "model.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        values = {"workers": "1", "threads": "1", "batch_size": "64"} | (parameters or {})
        config = {
            "parameters": {key: {"string_value": value} for key, value in values.items()},
            "model_transaction_policy": {"decoupled": streaming},
        }
        model = module.TritonPythonModel()
        model.initialize(
            {
                "model_config": json.dumps(config),
                "model_repository": str(repository / name),
                "model_version": "1",
                "model_instance_kind": "CPU" if gpu is None else "GPU",
                "model_instance_device_id": str(gpu or 0),
            }
        )
        models.append(model)
        return model

    yield start
    for model in models:
        model.finalize()
