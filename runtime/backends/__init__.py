"""Backends, which run the graphs or engines of a bundle.

Reading order: interface, table, rows, then a backend's folder. A backend is imported only when it
is opened, since its library may not be installed.
"""

from __future__ import annotations

import os
from importlib import import_module

from dragoman.errors import DragomanError

from ..format.bundle import Bundle
from .interface import Backend, BackendError
from .table import BACKEND_NAMES, BACKENDS, BackendRecord

MOST_THREADS = max(64, 4 * (os.cpu_count() or 1))


def default_backend(bundle: Bundle) -> str:
    """Return the first backend that runs a bundle.

    Engines run on the package that built them, graphs on ONNX Runtime.

    Raises:
        BackendError: no backend runs the bundle.
    """
    for record in BACKENDS:
        if record.refusal(bundle) is None:
            return record.name
    raise BackendError(
        f"{bundle.directory}: expected a bundle that one of {', '.join(BACKEND_NAMES)} runs, found "
        f"target {bundle.manifest.target}: upgrade with pip install --upgrade dragoman"
    )


def check_backend(bundle: Bundle, name: str | None) -> BackendRecord:
    """Return the record of a backend without importing it; None selects `default_backend`.

    Raises:
        BackendError: the name is unknown, or the backend does not run the bundle.
    """
    record = _record(default_backend(bundle) if name is None else name)
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
        raise DragomanError(f"threads: expected 1 to {MOST_THREADS}, found {threads}")


def open_backend(bundle: Bundle, name: str | None, threads: int | None) -> Backend:
    """Open a backend for a bundle.

    Args:
        name: name of a row of `table.BACKENDS`; None: `default_backend`
        threads: number of CPU threads; None: all cores

    Raises:
        BackendError: the name is unknown, a library or device is missing, or the backend cannot
            run the bundle.
        DragomanError: there are too few or too many threads.
    """
    check_threads(threads)
    record = check_backend(bundle, name)
    try:
        module = import_module(f"{__name__}.{record.module}")
    except ImportError as error:
        raise BackendError(
            f"the package {record.library} cannot be imported ({error}): "
            f"pip install 'dragoman[{record.extra}]'"
        ) from error
    backend: Backend = module.open_backend(bundle, threads)
    return backend


def _record(name: str) -> BackendRecord:
    for record in BACKENDS:
        if record.name == name:
            return record
    raise BackendError(f"unknown backend {name!r}, expected one of: {', '.join(BACKEND_NAMES)}")


__all__ = [
    "BACKENDS",
    "BACKEND_NAMES",
    "BackendRecord",
    "check_backend",
    "check_threads",
    "default_backend",
    "open_backend",
]
