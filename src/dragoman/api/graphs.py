"""The steps that `optimize` and `build` share; none needs PyTorch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.optimize.targets import Target
from dragoman.optimize.tensorrt.request import EngineRequest
from dragoman.progress import Progress
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.writing import BundleWriter, ScratchWriter
from dragoman.verification.inputs.sources import calibration_sources

NewDirectory = Callable[[str], Path]
"""Makes a temporary directory for a purpose, on the file system of the output."""


@contextlib.contextmanager
def scratch_directories(beside: Path) -> Iterator[NewDirectory]:
    """Temporary directories beside a path, removed when the block ends."""
    with contextlib.ExitStack() as stack:

        def new(purpose: str) -> Path:
            directory = TemporaryDirectory(dir=beside.parent, prefix=f".{purpose}-")
            return Path(stack.enter_context(directory))

        yield new


def optimize_graphs(
    neutral: Bundle,
    directory: Path,
    scratch: NewDirectory,
    target: Target,
    precision: Precision,
    calibration: Path | None,
    progress: Progress,
    *,
    keep_fp32: Collection[str] = (),
) -> Bundle:
    """Optimize a neutral bundle.

    Args:
        directory: of the bundle; graphs that engines are built from go to a scratch directory
        keep_fp32: see `optimize_bundle`
    """
    final = target.executable == "onnx"
    calibrated = calibration_sources(neutral, calibration) if calibration else None
    return optimize_bundle(
        neutral,
        directory if final else scratch("graphs"),
        target=target.name,
        precision=precision,
        calibration=calibrated.encodable if calibrated else None,
        calibration_types=calibrated.types if calibrated else None,
        keep_fp32=keep_fp32,
        writer=BundleWriter if final else ScratchWriter,
        progress=progress.stage,
    )


def finish(
    graphs: Bundle,
    directory: Path,
    target: Target,
    request: EngineRequest | None,
    progress: Progress,
) -> tuple[Bundle, tuple[str, ...]]:
    """The bundle to be, and warnings: the graphs themselves, or the engines built from them."""
    build = target.recipe.finish
    if request is None or build is None:
        return graphs, ()
    manifest = graphs.manifest
    options = request.for_model(manifest.model, manifest.default_max_new_tokens)
    return build(graphs, directory, options, progress=progress)
