"""A bundle ready to be compared: as it will run, or emulated where this machine cannot run it."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dragoman.optimize.emulation import emulated_bundle
from dragoman.optimize.targets import find_target
from dragoman.runtime import Bundle, Model
from dragoman.runtime.backends import default_backend, open_backend


@contextlib.contextmanager
def running(
    bundle: Bundle, threads: int | None = None, backend: str | None = None
) -> Iterator[tuple[Model, str]]:
    """A model, and what runs it, for the record.

    bf16, for which ONNX Runtime has no kernels on a processor, and 16-bit graphs that engines will
    be built from, whose overflows it would hide, are emulated in float32.
    """
    manifest, backend = bundle.manifest, backend or default_backend(bundle)
    graphs_of_engines = manifest.executable.format != find_target(manifest.target).executable
    halves = manifest.precision == "bf16" or (graphs_of_engines and manifest.precision != "fp32")
    if not halves or backend != "onnxruntime":
        with Model(bundle, open_backend(bundle, backend, threads)) as model:
            yield model, backend
        return
    with tempfile.TemporaryDirectory() as copy:
        emulated = emulated_bundle(bundle, Path(copy))
        model = Model(emulated, open_backend(emulated, backend, threads))
        half = "bfloat16" if manifest.precision == "bf16" else "float16"
        yield model, f"onnxruntime, {half} emulated in float32"
