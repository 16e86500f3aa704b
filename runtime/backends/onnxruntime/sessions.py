"""Opens ONNX Runtime sessions, compares them with the manifest, and runs them.

ONNX Runtime's exceptions share only the base Exception; they are converted here.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnxruntime

# If files of the package are gone, Python imports the empty folder, and only this fails.
from onnxruntime import SessionOptions

from dragoman.errors import DragomanError

from ...format.contract import GraphSpec, TensorSpec
from ..interface import BackendError, one_line

Failure = Callable[[str], DragomanError]
"""Function that creates the exception for a message of ONNX Runtime."""


def open_session(
    path: Path,
    graph: GraphSpec,
    options: SessionOptions,
    provider: str,
    provider_options: Mapping[str, str] | None = None,
    *,
    failure: Failure = BackendError,
) -> onnxruntime.InferenceSession:
    """Open the session of a graph's file, or raise an error if it differs from the manifest."""
    # By default, the format depends on the file's name, which is not restricted in bundles.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    try:
        session = onnxruntime.InferenceSession(
            str(path),
            options,
            providers=[(provider, provider_options or {})],
            enable_fallback=0,  # it prints, hides the cause, and runs on the processor
        )
    except Exception as error:  # the library's exceptions share no other base
        raise failure(
            f"{path}: onnxruntime {onnxruntime.__version__} cannot load this graph: "
            f"{one_line(error)}"
        ) from error
    problems = _differences(graph.inputs, session.get_inputs())
    problems += _differences(graph.outputs, session.get_outputs())
    if problems:
        raise BackendError(f"{path} is not as the manifest says", problems)
    return session


_opening: dict[tuple[int, str], threading.Lock] = {}
"""The lock of each mapped file in each process: a fork may copy one that is held."""


@contextmanager
def releasing_pages(file: Path) -> Iterator[None]:
    """Release the memory of the pages of a file that the context maps, where the system is Linux.

    Kernels keep most weights in a layout of their own; pages that are read again come from the
    system's cache. Mappings from before are left alone: other threads may free them meanwhile, and
    their addresses be reused.
    """
    with _opening.setdefault((os.getpid(), os.path.realpath(file)), threading.Lock()):
        before = _mappings(file)
        yield
        for first, end in _mappings(file) - before:
            # By its address, since the library made the mapping.
            madvise = ctypes.CDLL(None).madvise
            madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), mmap.MADV_DONTNEED)


def _mappings(file: Path) -> set[tuple[int, int]]:
    try:
        lines = Path("/proc/self/maps").read_bytes().split(b"\n")
    except OSError:
        return set()
    name = os.fsencode(os.path.realpath(file))
    found = set[tuple[int, int]]()
    for line in lines:
        fields = line.split(maxsplit=5)
        if fields[5:] == [name]:
            first, _, end = fields[0].partition(b"-")
            found.add((int(first, 16), int(end, 16)))
    return found


def run(call: Callable[..., Any], *arguments: Any, failure: Failure = BackendError) -> Any:
    """Call a function of ONNX Runtime; an error becomes what `failure` makes of its message."""
    try:
        return call(*arguments)
    except Exception as error:
        raise failure(f"onnxruntime failed: {one_line(error)}") from error


def _differences(expected: tuple[TensorSpec, ...], found: list[Any]) -> list[str]:
    values = {value.name: value for value in found}
    problems = [f"no tensor {spec.name}" for spec in expected if spec.name not in values]
    problems += [f"unexpected tensor {name}" for name in values.keys() - {s.name for s in expected}]
    for spec in expected:
        value = values.get(spec.name)
        kind = "float" if spec.dtype == "float32" else spec.dtype
        if value is not None and value.type != f"tensor({kind})":
            problems.append(f"{spec.name}: expected {spec.dtype}, found {value.type}")
        if value is not None and tuple(value.shape) != spec.shape:
            problems.append(f"{spec.name}: expected shape {list(spec.shape)}, found {value.shape}")
    return problems
