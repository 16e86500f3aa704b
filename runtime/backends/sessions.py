"""Sessions of ONNX Runtime: opened, compared with what the manifest says, and run.

Its exceptions share no base but Exception; here they become ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import onnxruntime

from ..bundle import Bundle
from ..manifest import DataType, GraphSpec, TensorSpec
from .cuda.driver import LOST
from .errors import BackendError, DeviceLostError

ONNX_TYPES: dict[DataType, str] = {
    "float32": "float",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "int64": "int64",
    "int32": "int32",
    "bool": "bool",
}
CUDA_FAILURE = re.compile(r"CUDA failure (\d+)|CUDA error (\d+)")
"""How the CUDA provider writes what CUDA said."""


def open_session(
    bundle: Bundle,
    graph: GraphSpec,
    options: onnxruntime.SessionOptions,
    provider: str,
    provider_options: Mapping[str, str] | None = None,
) -> onnxruntime.InferenceSession:
    """
    Raises:
        BackendError: ONNX Runtime does not load the graph, the provider does not work, or the
            graph is not as the manifest says; names the file.
    """
    try:
        session = onnxruntime.InferenceSession(
            str(bundle.path(graph.file)), options, providers=[(provider, provider_options or {})]
        )
    except Exception as error:  # the library raises a dozen types that share no other base
        raise _failure(
            f"{bundle.path(graph.file)}: onnxruntime {onnxruntime.__version__} cannot load this "
            f"graph: {error}"
        ) from error
    if provider not in session.get_providers():
        raise BackendError(
            f"expected a working {provider}, found none: no GPU, no driver or no CUDA libraries; "
            "use the backend onnxruntime"
        )
    problems = _differences(graph.inputs, session.get_inputs())
    problems += _differences(graph.outputs, session.get_outputs())
    if problems:
        raise BackendError(
            f"{bundle.path(graph.file)} is not as the manifest says: " + "; ".join(problems)
        )
    return session


def run(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call into ONNX Runtime.

    Raises:
        BackendError: it failed.
        DeviceLostError: it failed, and so will all that follows on this GPU.
    """
    try:
        return call(*arguments)
    except Exception as error:
        raise _failure(f"onnxruntime failed: {error}") from error


def _failure(message: str) -> BackendError | DeviceLostError:
    found = CUDA_FAILURE.search(message)
    lost = found is not None and int(found[1] or found[2]) in LOST.values()
    return DeviceLostError(message) if lost else BackendError(message)


def _differences(expected: tuple[TensorSpec, ...], found: list[Any]) -> list[str]:
    """How a graph's inputs or outputs differ from the manifest's."""
    values = {value.name: value for value in found}
    problems = [f"no tensor {spec.name}" for spec in expected if spec.name not in values]
    problems += [f"unexpected tensor {name}" for name in values.keys() - {s.name for s in expected}]
    for spec in expected:
        value = values.get(spec.name)
        if value is not None and value.type != f"tensor({ONNX_TYPES[spec.dtype]})":
            problems.append(f"{spec.name}: expected {spec.dtype}, found {value.type}")
        if value is not None and tuple(value.shape) != spec.shape:
            problems.append(f"{spec.name}: expected shape {list(spec.shape)}, found {value.shape}")
    return problems
