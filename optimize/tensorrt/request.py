"""What a user asks of engines: options, whose defaults depend on the model, or new weights."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.errors import DragomanError
from dragoman.runtime.backends.tensorrt.packages import find_package
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.executables import Profile, Range, TensorRTEngines
from dragoman.runtime.format.manifest import Precision

from ..engine_options import EngineOptions
from .capabilities import check_capabilities
from .profiles import DEFAULT_BATCH, Positions, check_profiles, check_range, default_source_range


@dataclass(frozen=True)
class EngineRequest:
    """Options of engines.

    Attributes:
        batches: a profile for each of these ranges of rows
        source_length: tokens of a source; None: all lengths that the model accepts
        capacity: the most new tokens; None: the bundle's default
        compute_capabilities: of the GPUs to build for, such as "8.9"; none: the package's default
        refittable: whether new weights can be put into the engines later
    """

    batches: tuple[Range, ...] = (DEFAULT_BATCH,)
    source_length: Range | None = None
    capacity: int | None = None
    compute_capabilities: tuple[str, ...] = ()
    refittable: bool = False

    def check(self, target: str, precision: Precision) -> None:
        """What can be checked without the model.

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
            raise DragomanError(f"capacity: expected at least 1, found {self.capacity}")
        check_capabilities(find_package(target), self.compute_capabilities, precision)

    def for_model(self, model: Positions, default_capacity: int) -> EngineOptions:
        """
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
                "source length: expected none for a decoder alone, which has no source"
            )
        if self.capacity is not None and not model.max_target_positions:
            raise DragomanError(
                "capacity: expected none for an encoder alone, which has no output of tokens"
            )
        source = self.source_length or default_source_range(model)
        profiles = tuple(Profile(batch, source) for batch in self.batches)
        capacity = self.capacity or default_capacity
        if not model.max_source_positions:  # a decoder alone: prompts need positions, too
            capacity = self.capacity or model.max_target_positions
        check_profiles(profiles, capacity, model)
        return EngineOptions(profiles, capacity, self.compute_capabilities, self.refittable)


def check_refittable(engines: Bundle) -> TensorRTEngines:
    """The engines of a bundle, if new weights can be put into them.

    Raises:
        DragomanError: the bundle has no engines, or they cannot be refitted.
    """
    built = engines.manifest.executable
    if not isinstance(built, TensorRTEngines):
        raise DragomanError(f"{engines.directory}: expected engines to refit, found graphs")
    if not built.refittable:
        raise DragomanError(
            f"{engines.directory}: its engines cannot be refitted: build them with --refittable"
        )
    return built
