"""Checks arguments before PyTorch or ONNX is imported."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from dragoman.errors import DragomanError, refuse_unwritable, shown
from dragoman.metrics import check_metrics
from dragoman.optimize.targets import Target, choose_target
from dragoman.optimize.tensorrt.request import EngineRequest
from dragoman.progress import resident_mb
from dragoman.runtime.backends import BACKENDS, BackendError, check_threads
from dragoman.runtime.backends.machine import cgroup_limits, free_swap, memory
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.writing import check_destination
from dragoman.verification.inputs.items import Comparison

QUANTIZED: tuple[Precision, ...] = ("int8", "int4")
"""Precisions that quantize weights, one by one."""


BYTES: Mapping[Precision, float] = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1.1, "int4": 0.7}
"""Bytes of a weight, with its share of scales and of what stays in fp32."""


BYTES_TO_BUILD: Mapping[Precision, float] = {"int8": 5.5, "int4": 5.5}
"""Bytes of memory for each weight that a build takes besides mapped files, if not `MOST_TO_BUILD`:
no more than was measured, so that no build is refused that would fit."""
MOST_TO_BUILD = 11.0
LEAST_TO_BUILD = 0.8e9
"""Bytes of memory that every build takes."""


def check_output(output: Path, overwrite: bool) -> None:
    """Check that an output directory can be created, as `new_directory` does."""
    refuse_unwritable(output)
    check_destination(output, overwrite)


def check_room(output: Path, weights: int, precision: Precision) -> None:
    """Check that there is room for a bundle of so many weights and, beside it, its graphs."""
    needed = int(weights * (BYTES["fp32"] + BYTES[precision]))
    existing = next(p for p in (output.absolute(), *output.absolute().parents) if p.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise DragomanError(
            f"{output}: expected {needed / 1e9:.2g} GB of disk space to build {weights / 1e6:,.1f} "
            f"million weights in {precision}, found {free / 1e9:.2g} GB at {existing}; nothing was "
            "written"
        )


def check_memory(weights: int, precision: Precision) -> None:
    """Check that the rest of a build fits into memory, once so many weights are read."""
    needed = LEAST_TO_BUILD + weights * BYTES_TO_BUILD.get(precision, MOST_TO_BUILD)
    _, available = memory()
    _, allowed = cgroup_limits()
    found = available + free_swap() + resident_mb()[0] * 1e6
    where = "available"
    if allowed is not None and allowed < found:
        found, where = allowed, "allowed for this container"
    if found < needed:
        less = "" if precision in BYTES_TO_BUILD else ", or --precision int8, which takes half"
        raise DragomanError(
            f"expected {needed / 1e9:.1f} GB of memory to build {weights / 1e6:,.1f} million "
            f"weights in {precision}, found {found / 1e9:.1f} GB {where}: build on a larger "
            f"machine and copy the bundle, which takes less memory to run{less}; nothing was "
            "written"
        )


def check_shortlist(
    path: str | Path | None, pairs: str | Path | None, target: Target, precision: Precision
) -> None:
    """Check the file of a shortlist, or of pairs to learn it from, and the target."""
    if path is not None and pairs is not None:
        raise DragomanError("shortlist: expected a file or shortlist_from, found both")
    path = pairs if path is None else path
    if path is None:
        return
    if target.executable != "onnx":
        raise DragomanError(
            f"shortlist: expected a target of graphs, found {target.name}: engines compute the "
            "logits of the whole vocabulary"
        )
    if precision == "bf16":
        raise DragomanError(
            "shortlist: expected a precision that ONNX Runtime runs on the processor, found bf16"
        )
    if not Path(path).is_file():
        raise DragomanError(f"shortlist: expected a file, found none at {path}")


def check_inputs(path: str | Path | None) -> Path | None:
    """Check that inputs exist."""
    if path is not None and not Path(path).exists():
        raise DragomanError(f"expected a file or a directory of inputs, found nothing at {path}")
    return None if path is None else Path(path)


def check_texts(path: Path) -> None:
    """Check that a file is text in UTF-8, unless it is a pipe, which can be read only once."""
    if not (path.is_file() or path.is_dir()):
        return
    try:
        with path.open(encoding="utf-8") as lines:
            for _ in lines:
                pass
    except (OSError, UnicodeDecodeError) as error:
        raise DragomanError(f"{path}: expected a file of texts, in UTF-8: {error}") from error


def check_calibration(path: str | Path | None, precision: Precision) -> Path | None:
    """Check the calibration inputs."""
    if path is not None and precision == "fp32":
        raise DragomanError(
            f"calibration: expected none at fp32, which keeps every number as it is, found {path}"
        )
    return check_inputs(path)


def check_kept(names: Sequence[str], target: Target, precision: Precision) -> None:
    """Check that modules can be kept in fp32.

    Raises:
        DragomanError: nothing is quantized, or engines run all other modules in 16 bits.
    """
    if not names:
        return
    if precision not in QUANTIZED:
        raise DragomanError(
            f"keep-fp32: expected a precision of weights, {' or '.join(QUANTIZED)}, found "
            f"{precision}"
        )
    if target.executable != "onnx":
        raise DragomanError(
            f"keep-fp32: expected a target of graphs, found {target.name}, whose engines compute "
            "in 16 bits what is not quantized"
        )


def check_comparison(
    threads: int | None,
    *,
    inputs: str | Path | None,
    limit: int | None = None,
    references: str | Path | None = None,
    metrics: Sequence[str] | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
) -> Comparison:
    """Check the options of a comparison."""
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise DragomanError(f"limit: expected at least 1 input, found {shown(limit)}")
    check_threads(threads)
    given = check_inputs(inputs)
    if references is not None and not Path(references).is_file():
        raise DragomanError(f"expected a file of references, found none at {references}")
    if isinstance(metrics, str):
        raise DragomanError(f"metrics: expected a list of names, found {shown(metrics)}")
    check_metrics(metrics or ())
    return Comparison(
        given,
        limit,
        None if references is None else Path(references),
        metrics or None,
        source_language,
        target_language,
    )


def check_library(target: str) -> None:
    """Check that the library is installed with which the bundles of a target are verified.

    Raises:
        BackendError: it is missing.
    """
    for record in BACKENDS:
        own = record.runs == "onnx" and record.name == target
        if own and find_spec(record.library) is None:
            raise BackendError(
                f"target {target}: the package {record.library} is missing: pip install "
                f"'dragoman[{record.extra}]'"
            )


def check_target(
    target: str | None, precision: Precision, engines: EngineRequest | None
) -> tuple[Target, EngineRequest | None]:
    """Select the target, and the engine request if the target builds engines."""
    chosen = choose_target(target, precision)
    if chosen.executable == "onnx":
        if engines is not None:
            raise DragomanError(
                f"target {chosen.name} builds no engines: expected no options for engines"
            )
        return chosen, None
    request = engines or EngineRequest()
    request.check(chosen.name, precision)
    return chosen, request
