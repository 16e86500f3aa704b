"""Optimization profiles in terms that users know: rows of a batch, tokens of a source, capacity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from dragoman.errors import DragomanError
from dragoman.runtime.format.contract import GraphSpec
from dragoman.runtime.format.manifest import Profile, Range

DEFAULT_BATCH = Range(1, 8, 32)
NAMED_BATCHES: dict[str, Range] = {"latency": Range(1, 1, 1), "throughput": Range(1, 32, 32)}
"""Ranges of rows by purpose: sources one at a time, as they arrive; up to 32 sources at once."""


class PositionLimits(Protocol):
    """The positions of a model: a `ModelConfig`, or the `ModelSpec` of a bundle."""

    @property
    def takes_audio(self) -> bool:
        """Whether the sources are audio features."""

    @property
    def max_source_positions(self) -> int:
        """The maximum number of source positions; 0 for a decoder-only model."""

    @property
    def max_target_positions(self) -> int:
        """The maximum number of target positions; 0 for an encoder-only model."""


def default_source_range(model: PositionLimits) -> Range:
    """Return the accepted lengths, tuned for a sentence; 1 for decoder-only models."""
    longest = max(1, model.max_source_positions)
    if model.takes_audio:
        return Range(longest, longest, longest)
    return Range(1, min(32, longest), longest)


def check_profiles(profiles: Sequence[Profile], capacity: int, model: PositionLimits) -> None:
    """Check profiles and capacity against the positions of a model."""
    if not profiles:
        raise DragomanError("expected at least one optimization profile, found none")
    for index, profile in enumerate(profiles):
        for name, sizes in (("batch", profile.batch), ("source length", profile.source)):
            check_range(f"profile {index}, {name}", sizes)
        longest = model.max_source_positions
        if profile.source.largest > max(1, longest):
            most = f"{longest}, the positions of this model" if longest else "1, without a source"
            raise DragomanError(
                f"profile {index}, source length: expected at most {most}, found "
                f"{profile.source.largest}"
            )
    if model.max_target_positions and not 1 <= capacity <= model.max_target_positions:
        raise DragomanError(
            f"capacity: expected 1 to {model.max_target_positions}, the positions of this model, "
            f"found {capacity}"
        )


def check_range(name: str, sizes: Range) -> None:
    """Check that the sizes of a range are in order."""
    if not sizes.in_order:
        raise DragomanError(
            f"{name}: expected 1 <= smallest <= best <= largest, found "
            f"{sizes.smallest}..{sizes.best}..{sizes.largest}"
        )


def add_profiles(builder: Any, config: Any, spec: GraphSpec, profiles: Sequence[Profile]) -> None:
    """Give every input of a graph its smallest, best and largest shape, profile by profile.

    Args:
        builder, config: a package's Builder and IBuilderConfig
        spec: its only dynamic axes are batch, source_batch and source
    """
    for index, profile in enumerate(profiles):
        trt_profile = builder.create_optimization_profile()
        for tensor in spec.inputs:
            shapes = [_shape(tensor.name, tensor.shape, sizes) for sizes in _sizes(profile)]
            try:
                trt_profile.set_shape(tensor.name, *shapes)
            except (TypeError, ValueError, RuntimeError) as error:
                raise DragomanError(
                    f"profile {index}, input {tensor.name}: TensorRT refuses the shapes "
                    f"{shapes[0]} to {shapes[-1]}: {error}"
                ) from error
        if config.add_optimization_profile(trt_profile) < 0:
            raise DragomanError(f"profile {index}: TensorRT refuses {describe(profile)}")


def describe(profile: Profile) -> str:
    """Describe a profile for the user: "batch 1 to 32 (best 8), source 1 to 64 (best 32)"."""
    return f"batch {_describe(profile.batch)}, source {_describe(profile.source)}"


def _describe(sizes: Range) -> str:
    if sizes.smallest == sizes.largest:
        return str(sizes.smallest)
    return f"{sizes.smallest} to {sizes.largest} (best {sizes.best})"


def _sizes(profile: Profile) -> list[dict[str, int]]:
    """Return the smallest, best and largest sizes: one source for all rows to one for each."""
    batch, source = profile.batch, profile.source
    return [
        {"batch": rows, "source_batch": sources, "source": length}
        for rows, sources, length in (
            (batch.smallest, 1, source.smallest),
            (batch.best, batch.best, source.best),
            (batch.largest, batch.largest, source.largest),
        )
    ]


def _shape(name: str, shape: tuple[int | str, ...], axes: dict[str, int]) -> tuple[int, ...]:
    unknown = [d for d in shape if isinstance(d, str) and d not in axes]
    if unknown:
        raise DragomanError(
            f"input {name}: expected no dynamic axes but {', '.join(axes)}, found {unknown[0]}"
        )
    return tuple(axes[d] if isinstance(d, str) else d for d in shape)
