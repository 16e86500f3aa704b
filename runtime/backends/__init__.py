"""Backends, which run the graphs or engines of a bundle.

Reading order: interface, table, rows, then a backend. A backend is imported only when it
is opened, since its library may not be installed.
"""

from __future__ import annotations

import os
import re
from importlib import import_module
from typing import Any

from dragoman.errors import DragomanError, import_problem, shown

from ..format.bundle import Bundle
from .interface import (
    Backend,
    BackendError,
    Candidates,
    DecodingState,
    Limits,
    Prediction,
    StepOutput,
    Steps,
)
from .table import BACKEND_NAMES, BACKENDS, BackendRecord

MOST_THREADS = max(64, 4 * (os.cpu_count() or 1))
DEVICE_NAMES = r"cpu|cuda(?::(0|[1-9][0-9]{0,3}))?"


def gpu_index(device: str | None) -> int | None:
    """Return the number of a GPU by its name: 1 for "cuda:1"; None for "cpu" and for no name."""
    if device is None:
        return None
    found = re.fullmatch(DEVICE_NAMES, device) if isinstance(device, str) else None
    if found is None:
        raise DragomanError(
            f"device: expected cpu, cuda or cuda:N, such as cuda:1, found {shown(device)}"
        )
    return None if device == "cpu" else int(found[1] or 0)


def default_backend(bundle: Bundle, device: str | None = None) -> str:
    """Return the first backend that runs a bundle, on a device if one is named.

    Engines run on the package that built them, graphs on ONNX Runtime or, if they are for target
    openvino, on OpenVINO.

    Raises:
        BackendError: no backend runs the bundle, or none does on this device.
        DragomanError: `device` is not a name of a device.
    """
    kind = _kind(device)
    for record in BACKENDS:
        if kind in (None, record.device) and record.refusal(bundle) is None:
            return record.name
    target, engines = bundle.manifest.target, bundle.manifest.executable.format != "onnx"
    if kind == "cpu" and engines:
        raise BackendError(
            f"device: expected cuda, as {bundle.directory} holds engines of {target}, found cpu: "
            "build a bundle for target cpu"
        )
    if kind == "cuda" and not engines:  # names the target or the precision to build
        check_backend(bundle, "onnxruntime-cuda")
    raise BackendError(
        f"{bundle.directory}: expected a bundle that one of {', '.join(BACKEND_NAMES)} runs, found "
        f"target {target}: upgrade with pip install --upgrade dragoman"
    )


def runs_on_gpus(target: str) -> bool:
    """Return whether a backend on a GPU runs bundles of a target, in some precision."""
    return any(record.device == "cuda" and target in (record.targets or ()) for record in BACKENDS)


def check_backend(bundle: Bundle, name: str | None, device: str | None = None) -> BackendRecord:
    """Return the record of a backend without importing it; None selects `default_backend`.

    Raises:
        BackendError: the name is unknown, or the backend does not run the bundle.
        DragomanError: `device` is not a name of a device, or the backend runs on another one.
    """
    record = _record(default_backend(bundle, device) if name is None else name)
    if _kind(device) not in (None, record.device):
        raise DragomanError(
            f"device: expected {record.device} for the backend {name}, found {device}: leave out "
            "one of the two"
        )
    refusal = record.refusal(bundle)
    if refusal is not None:
        raise BackendError(refusal)
    return record


def check_threads(threads: int | None) -> None:
    """Check a number of threads.

    Raises:
        DragomanError: `threads` is below 1, or far too large for the machine.
    """
    if threads is None:
        return
    if not isinstance(threads, int) or not 1 <= threads <= MOST_THREADS:
        raise DragomanError(f"threads: expected 1 to {MOST_THREADS}, found {shown(threads)}")


def open_backend(
    bundle: Bundle,
    name: str | None,
    threads: int | None,
    device: str | None = None,
    *,
    allow_fallback: bool = False,
) -> Backend:
    """Open a backend for a bundle.

    Args:
        name: name of a row of `table.BACKENDS`; None: `default_backend`
        device, allow_fallback: as for `load`

    Raises:
        BackendError: the name is unknown, a library or device is missing, or the backend cannot
            run the bundle.
        DragomanError: there are too few or too many threads, or no such device.
    """
    check_threads(threads)
    module = import_backend(bundle, name, device)
    record = check_backend(bundle, name, device)
    gpu = [] if record.device == "cpu" else [gpu_index(device) or 0]
    options = {"allow_fallback": True} if allow_fallback and record.falls_back else {}
    backend: Backend = module.open_backend(bundle, threads, *gpu, **options)
    return backend


def import_backend(bundle: Bundle, name: str | None, device: str | None = None) -> Any:
    """Import the module of a backend, and with it the backend's library.

    Raises:
        BackendError: see `check_backend`; or the library is missing or damaged.
    """
    record = check_backend(bundle, name, device)
    try:
        return import_module(f"{__name__}.{record.module}")
    except ImportError as error:
        requirement = f"dragoman[{record.extra}]"
        missing = f"the package {record.library} cannot be imported ({error})"
        raise BackendError(
            ": ".join(
                import_problem(record.library, requirement, error)
                or (missing, f"pip install '{requirement}'")
            )
        ) from error


def _kind(device: str | None) -> str | None:
    if device is None:
        return None
    return "cpu" if gpu_index(device) is None else "cuda"


def _record(name: str) -> BackendRecord:
    for record in BACKENDS:
        if isinstance(name, str) and record.name == name:
            return record
    raise BackendError(
        f"unknown backend {shown(name)}, expected one of: {', '.join(BACKEND_NAMES)}"
    )


__all__ = [
    "BACKENDS",
    "BACKEND_NAMES",
    "Backend",
    "BackendError",
    "BackendRecord",
    "Candidates",
    "DecodingState",
    "Limits",
    "Prediction",
    "StepOutput",
    "Steps",
    "check_backend",
    "check_threads",
    "default_backend",
    "gpu_index",
    "import_backend",
    "open_backend",
    "runs_on_gpus",
]
