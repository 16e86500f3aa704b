"""Loads bundles."""

from __future__ import annotations

import os
from pathlib import Path

from dragoman.errors import DragomanError
from dragoman.settings.fields import is_integer, shown

from .backends import open_backend
from .format.bundle import Bundle, read_bundle
from .model import Model


def load(
    directory: str | Path | Bundle, *, threads: int | None = None, backend: str | None = None
) -> Model:
    """Load a bundle.

    Args:
        directory: the bundle's directory; or the result of `read_bundle`, whose files are not
            checked again
        threads: number of CPU threads; None: one for each core
        backend: a name in `backends.BACKENDS`: "onnxruntime" (CPU), "onnxruntime-cuda",
            "tensorrt-rtx" or "tensorrt"; None: the first that runs the bundle. Engines run on the
            package that built them, graphs on the CPU.

    Raises:
        BundleError: the bundle is damaged or of a newer schema; lists everything that is wrong.
        BackendError: the backend's library or device is missing, or cannot run this bundle.
        DragomanError: `directory` is not a path, or `threads` is not an integer of at least 1.
    """
    where: object = directory
    if not isinstance(where, str | os.PathLike | Bundle):
        raise DragomanError(f"expected the path of a bundle, found {shown(where)}")
    if threads is not None:
        if not is_integer(threads):
            raise DragomanError(f"threads: expected an integer, found {shown(threads)}")
        if threads < 1:
            raise DragomanError(f"threads: expected at least 1, found {threads}")
        threads = int(threads)
    bundle = directory if isinstance(directory, Bundle) else read_bundle(Path(directory))
    return Model(bundle, open_backend(bundle, backend, threads))
