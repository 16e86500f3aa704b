"""Compute capabilities: the GPUs that an engine runs on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dragoman.errors import DragomanError
from dragoman.runtime.backends.tensorrt.packages import Package
from dragoman.runtime.format.manifest import Precision

GPUS: dict[str, str] = {
    "7.5": "Turing (GeForce RTX 20, T4)",
    "8.0": "Ampere (A100)",
    "8.6": "Ampere (GeForce RTX 30, A10)",
    "8.9": "Ada (GeForce RTX 40, L4, L40)",
    "12.0": "Blackwell (GeForce RTX 50, RTX PRO)",
    "12.1": "Blackwell (GB10, DGX Spark)",
}
TURING = "7.5"


def check_capabilities(package: Package, requested: Sequence[str], precision: Precision) -> None:
    """
    Args:
        requested: such as "8.9"; the package's default if none

    Raises:
        DragomanError: the package does not build for one of them, or not in this precision; says
            what it builds for.
    """
    known = _known(package)
    if not known:
        if requested:
            raise DragomanError(
                f"{package.name} builds for the GPU of the machine it runs on: expected no "
                f"compute capability, found {', '.join(requested)}"
            )
        return
    unknown = [capability for capability in requested if capability not in known]
    if unknown:
        raise DragomanError(
            f"compute capability {', '.join(unknown)}: {package.name} {package.version} builds for "
            f"{', '.join(known)}"
        )
    if TURING in requested and precision != "fp16":
        raise DragomanError(
            f"compute capability {TURING}, {GPUS[TURING]}: expected precision fp16, found "
            f"{precision}, for which {package.name} has no kernels there"
        )


def set_capabilities(package: Package, config: Any, requested: Sequence[str]) -> None:
    """Set the compute capabilities in an IBuilderConfig; see `check_capabilities`."""
    known = _known(package)
    if not requested or not known:
        return
    config.num_compute_capabilities = len(requested)
    for index, capability in enumerate(requested):
        config.set_compute_capability(known[capability], index)


def describe_capabilities(target: str, requested: Sequence[str]) -> str:
    """The GPUs that engines run on, for the user."""
    if requested:
        return "; ".join(f"{c}: {GPUS[c]}" if c in GPUS else c for c in requested)
    if target == "tensorrt-rtx":
        return "Ampere and later: compute capability 8.0, 8.6, 8.9, 12.0 and up"
    return "the GPU that it was built on, and others of the same compute capability"


def _known(package: Package) -> dict[str, Any]:
    """The capabilities that the package can build for: SM89 is 8.9."""
    kinds = getattr(package.module, "ComputeCapability", None)
    known = {
        f"{name[2:-1]}.{name[-1]}": value
        for name, value in getattr(kinds, "__members__", {}).items()
        if re.fullmatch(r"SM\d{2,}", name)
    }
    return dict(sorted(known.items(), key=lambda item: float(item[0])))
