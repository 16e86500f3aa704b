"""Anyone's ONNX Transformer: standard operators again, and from there a target's best form."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir

from dragoman.errors import DragomanError, refuse_existing
from dragoman.runtime.format.records import PassRecord

from .fusions import STANDARD_PASSES
from .pipeline import apply_passes
from .samples import Samples, samples_for_model
from .targets import find_target


def optimize_file(
    source: Path,
    destination: Path,
    *,
    target: str = "neutral",
    samples: Samples | None = None,
    compare: bool = True,
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda stage: None,
) -> list[PassRecord]:
    """Optimize one ONNX file. The destination appears whole or not at all.

    Args:
        target: "neutral" fuses to standard operators; "cpu" goes on to ONNX Runtime's own
        samples: values for the graph's inputs; made up from names, types and shapes if None
        compare: run the graph before and after each pass; False: no difference is measured

    Raises:
        DragomanError: the source is not an ONNX file, or the destination exists or cannot be
            written.
        PassError: a pass failed or changed an output by more than it may; names it.
    """
    refuse_existing(destination, overwrite)
    own_passes = find_target(target).recipe.file_passes
    if own_passes is None:
        raise DragomanError(f"{source}: target {target} needs a bundle, whose inputs are known")
    try:
        model = ir.load(source)
        ir.external_data.load_to_model(model)
    except FileNotFoundError as error:
        raise DragomanError(f"{source}: expected an ONNX file, found none: {error}") from error
    except Exception as error:  # protobuf's and onnx_ir's errors share no base
        raise DragomanError(f"{source}: expected an ONNX file: {error}") from error
    if len(list(model.graph)) == 0:
        raise DragomanError(f"{source}: expected an ONNX file, found no nodes in it")
    given = samples if samples is not None or not compare else samples_for_model(model)
    passes = (*STANDARD_PASSES, *own_passes)
    records = apply_passes(model, passes, graph=source.name, samples=given, progress=progress)
    _save(model, destination)
    return records


def _save(model: ir.Model, destination: Path) -> None:
    """In one file, or where the weights are too large for one, with them beside it."""
    weights = sum(
        value.const_value.nbytes
        for value in model.graph.initializers.values()
        if value.const_value is not None
    )
    large = weights > onnx.checker.MAXIMUM_PROTOBUF - 2**20
    beside = f"{destination.name}.data"
    try:
        with tempfile.TemporaryDirectory(dir=destination.parent, prefix=".partial-") as directory:
            partial = Path(directory)
            ir.save(model, partial / destination.name, external_data=beside if large else None)
            if large:
                (partial / beside).replace(destination.parent / beside)
            (partial / destination.name).replace(destination)
    except OSError as error:
        raise DragomanError(f"cannot write {destination}: {error.strerror}") from error
