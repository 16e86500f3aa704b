"""A user's request for engines: options whose defaults depend on the model, and GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.errors import DragomanError, shown
from dragoman.runtime.backends.tensorrt.packages import (
    Package,
    compute_capabilities,
    find_package,
)
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.manifest import Precision, Profile, Range, TensorRTEngines

from .profiles import (
    DEFAULT_BATCH,
    PositionLimits,
    check_profiles,
    check_range,
    default_source_range,
)


@dataclass(frozen=True)
class EngineOptions:
    """The options that a model's engines are built with."""

    profiles: tuple[Profile, ...]
    """One or more optimization profiles."""
    capacity: int
    """Number of target positions, including the start token's."""
    compute_capabilities: tuple[str, ...] = ()
    """Capabilities of the GPUs, such as "8.9"; if empty, the default."""
    refittable: bool = False
    """Whether new weights can be put into the engines later."""


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
    """Check that a package builds engines for GPUs in a precision."""
    known = compute_capabilities(package)
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
    known = compute_capabilities(package)
    if not requested or not known:
        return
    config.num_compute_capabilities = len(requested)
    for index, capability in enumerate(requested):
        config.set_compute_capability(known[capability], index)


def describe_capabilities(target: str, requested: Sequence[str]) -> str:
    """Describe the GPUs that engines run on, for the user."""
    if requested:
        return "; ".join(f"{c}: {GPUS[c]}" if c in GPUS else c for c in requested)
    if target == "tensorrt-rtx":
        return "Ampere and later: compute capability 8.0, 8.6, 8.9, 12.0 and up"
    return "the GPU that it was built on, and others of the same compute capability"


@dataclass(frozen=True)
class EngineRequest:
    """A user's request for engines."""

    batches: tuple[Range, ...] = (DEFAULT_BATCH,)
    """A profile for each of these ranges of rows."""
    source_length: Range | None = None
    """Tokens of a source; None: all lengths that the model accepts."""
    capacity: int | None = None
    """Maximum number of new tokens; None: the bundle's default."""
    compute_capabilities: tuple[str, ...] = ()
    """Capabilities of the GPUs, such as "8.9"; if empty, the default."""
    refittable: bool = False
    """Whether new weights can be put into the engines later."""

    def check(self, target: str, precision: Precision) -> None:
        """Check what can be checked without the model.

        Raises:
            DragomanError: a range is not in order, or the target's package cannot build for one of
                the GPUs.
            BackendError: the package is missing.
        """
        for index, batch in enumerate(self.batches):
            check_range(f"profile {index}, batch", batch)
        if self.source_length is not None:
            check_range("source length", self.source_length)
        if self.capacity is not None and self.capacity < 1:
            raise DragomanError(f"capacity: expected at least 1, found {shown(self.capacity)}")
        check_capabilities(find_package(target), self.compute_capabilities, precision)

    def for_model(self, model: PositionLimits, default_capacity: int) -> EngineOptions:
        """Return the options for a model.

        Args:
            default_capacity: the capacity if none is requested

        Raises:
            DragomanError: the request does not fit the model.
        """
        if self.source_length is not None and model.takes_audio:
            raise DragomanError(
                "source length: expected none for a speech model, whose sources are windows of one "
                "length"
            )
        if self.source_length is not None and not model.max_source_positions:
            raise DragomanError(
                "source length: expected none for a decoder-only model, which has no source"
            )
        if self.capacity is not None and not model.max_target_positions:
            raise DragomanError(
                "capacity: expected none for an encoder-only model, which generates no tokens"
            )
        source = self.source_length or default_source_range(model)
        profiles = tuple(Profile(batch, source) for batch in self.batches)
        capacity = self.capacity or default_capacity
        if not model.max_source_positions:  # decoder-only: prompts need positions too
            capacity = self.capacity or model.max_target_positions
        check_profiles(profiles, capacity, model)
        return EngineOptions(profiles, capacity, self.compute_capabilities, self.refittable)


def check_refittable(engines: Bundle) -> TensorRTEngines:
    """Return the engines of a bundle if new weights can be put into them."""
    built = engines.manifest.executable
    if not isinstance(built, TensorRTEngines):
        raise DragomanError(f"{engines.directory}: expected engines to refit, found graphs")
    if not built.refittable:
        raise DragomanError(
            f"{engines.directory}: its engines cannot be refitted: build them with --refittable"
        )
    return built
