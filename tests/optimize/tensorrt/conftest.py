"""Engines of these tests are built by NVIDIA's package TensorRT-RTX, which needs no GPU for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest

from dragoman.optimize.tensorrt.profiles import NAMED_BATCHES
from dragoman.optimize.tensorrt.request import EngineOptions
from dragoman.runtime.backends.tensorrt.packages import Package, find_package
from dragoman.runtime.format.manifest import Profile, Range

SOURCE = Range(1, 7, 20)
Graph = Callable[..., Path]


@pytest.fixture(scope="session")
def rtx() -> Package:
    return find_package("tensorrt-rtx")


@pytest.fixture
def one_profile() -> EngineOptions:
    return EngineOptions((Profile(Range(1, 7, 8), SOURCE),), capacity=9)


@pytest.fixture
def two_profiles() -> EngineOptions:
    return EngineOptions(
        tuple(Profile(batch, SOURCE) for batch in NAMED_BATCHES.values()), capacity=9
    )


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    """Writes an ONNX file whose nodes are marked as those of a module of a model."""

    def write(
        nodes: Sequence[onnx.NodeProto], inputs: dict[str, Any], outputs: dict[str, Any]
    ) -> Path:
        made = onnx.helper.make_graph(
            list(nodes),
            "graph",
            [onnx.helper.make_tensor_value_info(n, *spec) for n, spec in inputs.items()],
            [onnx.helper.make_tensor_value_info(n, *spec) for n, spec in outputs.items()],
        )
        model = onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", 24)])
        read = ir.serde.deserialize_model(model)
        for node in read.graph:
            node.metadata_props["pkg.torch.onnx.name_scopes"] = (
                "['', 'model.decoder', 'model.decoder.layers.1', 'node']"
            )
        path = tmp_path / "made.onnx"
        ir.save(read, path)
        return path

    return write
