"""Optimizes a neutral bundle, or an ONNX file from any exporter, for a target, without PyTorch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from dragoman.errors import DragomanError, refuse_existing, refuse_unwritable
from dragoman.optimize.targets import Target, find_target
from dragoman.optimize.tensorrt.request import EngineRequest
from dragoman.progress import Progress, Silent
from dragoman.runtime.format.bundle import Bundle, read_bundle
from dragoman.runtime.format.manifest import Precision

from .preflight import check_calibration, check_kept, check_output, check_target

if TYPE_CHECKING:
    from dragoman.runtime.format.manifest import PassRecord


@dataclass(frozen=True)
class OptimizedBundle:
    """A bundle that `optimize` wrote."""

    bundle: Bundle
    """Optimized bundle, whose manifest records every pass."""
    warnings: tuple[str, ...] = ()
    """One line each, such as those about engines."""


def optimize(
    source: str | Path,
    output: str | Path,
    *,
    target: str | None = None,
    precision: Precision = "fp32",
    calibration: str | Path | None = None,
    keep_fp32: Sequence[str] = (),
    engines: EngineRequest | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> OptimizedBundle:
    """Optimize a neutral bundle for a target; for the TensorRT targets, build engines.

    The result is not verified.

    Args:
        source: directory of a neutral bundle in fp32
        output: directory of the new bundle, written atomically
        target, precision, calibration, keep_fp32, engines: see `build`
        overwrite: whether to replace an existing bundle

    Raises:
        BundleError: the source is damaged.
        BackendError: the target's package is missing.
        PassError: a pass failed, or changed an output by more than its tolerance.
        EngineError: TensorRT cannot build an engine from a graph.
        DragomanError: a path or an option is wrong, or the output cannot be written.
    """
    progress, output = progress or Silent(), Path(output)
    chosen, request = check_target(target, precision, engines)
    check_output(output, overwrite)
    calibrated_on = check_calibration(calibration, precision)
    check_kept(keep_fp32, chosen, precision)
    bundle = read_bundle(Path(source))
    chosen.check_source(bundle, precision)
    if output.resolve() == bundle.directory.resolve():
        raise DragomanError(f"{output} is the source itself: choose another name for the output")
    if request is not None:  # fail early
        request.for_model(bundle.manifest.model, bundle.manifest.default_max_new_tokens)

    from dragoman.runtime.format.writing import new_directory

    with (
        new_directory(output, overwrite=overwrite) as partial,
        scratch_directories(partial) as scratch,
    ):
        graphs = optimize_graphs(
            *(bundle, partial, scratch, chosen, precision, calibrated_on, progress),
            keep_fp32=keep_fp32,
        )
        finished, warnings = finish(graphs, partial, chosen, request, progress)
    return OptimizedBundle(Bundle(output, finished.manifest), warnings)


def optimize_onnx(
    source: str | Path,
    output: str | Path,
    *,
    target: str | None = None,
    compare: bool = True,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> list[PassRecord]:
    """Fuse the operators of a single ONNX file from any exporter, in its own precision.

    Names, number, order and types of inputs and outputs stay, whether outputs are compared or not.

    Args:
        target: name of a target whose graphs need no bundle; None: cpu
        compare: whether to measure the difference that each pass causes
        overwrite: whether to replace an existing file

    Returns:
        the records of the passes; `not_compared` names branches that no input was found for

    Raises:
        PassError: a pass failed, or changed an output by more than its tolerance.
        DragomanError: the source is not an ONNX file, or a path or the target is wrong.
    """
    progress, source, output = progress or Silent(), Path(source), Path(output)
    chosen = find_target("cpu" if target is None else target)
    if chosen.executable != "onnx":
        raise DragomanError(
            f"{source}: target {chosen.name} needs a bundle, whose inputs are known: use target "
            "neutral for a file"
        )
    refuse_existing(output, overwrite)
    refuse_unwritable(output)
    if not source.is_file():
        raise DragomanError(
            f"{source}: expected an ONNX file or the directory of a bundle, found none"
        )

    from dragoman.optimize.onnx_file import optimize_file

    return optimize_file(
        source,
        output,
        target=chosen.name,
        compare=compare,
        overwrite=overwrite,
        progress=progress.stage,
    )


NewDirectory = Callable[[str], Path]
"""Makes a temporary directory for a purpose, on the file system of the output."""


@contextlib.contextmanager
def scratch_directories(path: Path) -> Iterator[NewDirectory]:
    """Create temporary directories in another, and remove them at the end of the context."""
    with contextlib.ExitStack() as stack:

        def new(purpose: str) -> Path:
            directory = TemporaryDirectory(dir=path, prefix=f".{purpose}-")
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
        scratch: gets the source graphs of engines
        keep_fp32: see `optimize_bundle`
    """
    from dragoman.optimize.target_bundle import optimize_bundle
    from dragoman.runtime.format.writing import BundleWriter, ScratchWriter
    from dragoman.verification.inputs.sources import calibration_sources

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
    """Return the optimized graphs, or engines built from them, with warnings."""
    recipe, manifest = target.recipe, graphs.manifest
    build = recipe.build_engines
    if request is None or build is None:
        uncalibrated = manifest.precision == "int8" and not manifest.calibrated_on
        warning = recipe.uncalibrated_warning if uncalibrated else None
        return graphs, () if warning is None else (warning,)
    options = request.for_model(manifest.model, manifest.default_max_new_tokens)
    return build(graphs, directory, options, progress=progress)
