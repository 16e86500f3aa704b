"""Checks that need neither PyTorch nor ONNX, so that mistakes are refused at once."""

from __future__ import annotations

from pathlib import Path

from dragoman.errors import DragomanError
from dragoman.export.formats.detection import check_is_checkpoint
from dragoman.optimize.targets import Target, choose_target
from dragoman.optimize.tensorrt.request import EngineRequest
from dragoman.reference_model.pretrained import find_checkpoint
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.writing import check_destination

__all__ = ["check_checkpoint", "check_destination", "check_inputs", "check_target"]


def check_checkpoint(name_or_path: str | Path) -> None:
    """
    Raises:
        DragomanError: the checkpoint does not exist, or its format is unknown.
    """
    check_is_checkpoint(find_checkpoint(str(name_or_path)))


def check_inputs(*paths: Path | None) -> None:
    """
    Raises:
        DragomanError: a file or directory of inputs does not exist.
    """
    for path in paths:
        if path is not None and not path.exists():
            raise DragomanError(
                f"expected a file or a directory of inputs, found nothing at {path}"
            )


def check_target(
    target: str | None, precision: Precision, engines: EngineRequest | None
) -> tuple[Target, EngineRequest | None]:
    """The target, and the request for engines if it builds any.

    Raises:
        DragomanError: there is no such target, it lacks the precision or builds no engines, or its
            package cannot build them.
        BackendError: the target's package is missing.
    """
    chosen = choose_target(target, precision)
    if chosen.executable == "onnx":
        if engines is not None:
            raise DragomanError(
                f"target {chosen.name} builds no engines: expected no options for engines"
            )
        return chosen, None
    request = engines or EngineRequest()
    request.check_package(chosen.name, precision)
    return chosen, request
