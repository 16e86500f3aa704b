"""What users say of the engines they want, as options of `build` and `optimize`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from dragoman import DragomanError

if TYPE_CHECKING:
    from dragoman.optimize.tensorrt.builder import EngineOptions
    from dragoman.optimize.tensorrt.profiles import Positions
    from dragoman.runtime.format.manifest import Precision, Target

NAMED = {"latency": "1", "throughput": "1..32"}
"""Profiles by what they are for."""

DEFAULT_PROFILE = "1..8..32"


class Sizes(NamedTuple):
    smallest: int
    best: int
    largest: int


class SizesType(click.ParamType):  # type: ignore[type-arg]
    """A size, or a range with or without the best: 8, 1..32, 1..8..32."""

    name = "range"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Sizes:
        if isinstance(value, Sizes):
            return value
        try:
            return sizes(NAMED.get(value, value))
        except ValueError:
            expected = "a size or a range such as 8, 1..32 or 1..8..32"
            raise click.BadParameter(f"expected {expected}, found {value}", ctx, param) from None


def sizes(text: str) -> Sizes:
    """
    Raises:
        ValueError: it is not written like one.
    """
    numbers = [int(part) for part in text.split("..")]
    match numbers:
        case [size]:
            return Sizes(size, size, size)
        case [smallest, largest]:
            return Sizes(smallest, largest, largest)
        case [smallest, best, largest]:
            return Sizes(smallest, best, largest)
    raise ValueError(text)


@dataclass(frozen=True)
class EngineRequest:
    """The options as given; what is left open depends on the model."""

    profiles: tuple[Sizes, ...]
    source_length: Sizes | None
    capacity: int | None
    compute_capabilities: tuple[str, ...]
    refittable: bool

    def for_model(self, positions: Positions, most_new_tokens: int) -> EngineOptions:
        """
        Args:
            most_new_tokens: the capacity where none was asked for

        Raises:
            DragomanError: they do not fit the model.
        """
        from dragoman.optimize.tensorrt.builder import EngineOptions
        from dragoman.optimize.tensorrt.profiles import check_profiles, default_source_range
        from dragoman.runtime.format.executables import Profile, Range

        given = self.source_length
        if given is not None and positions.source_vocab_size is None:
            raise DragomanError(
                "--source-length is for models of texts: of speech every source is a window"
            )
        source = default_source_range(positions) if given is None else Range(*given)
        profiles = tuple(Profile(Range(*batch), source) for batch in self.profiles)
        capacity = self.capacity or most_new_tokens
        check_profiles(profiles, capacity, positions)
        return EngineOptions(profiles, capacity, self.compute_capabilities, self.refittable)


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the command gets them as one `engines`, see `requested`."""
    for option in reversed(
        (
            click.option(
                "--profile",
                "profiles",
                type=SizesType(),
                multiple=True,
                metavar="BATCH",
                help="Engines: batch sizes, such as 8, 1..32, 1..8..32 (best 8), latency, "
                "throughput; may be repeated [1..8..32].",
            ),
            click.option(
                "--source-length",
                type=SizesType(),
                metavar="TOKENS",
                help="Engines: lengths of sources, as above [all of the model's].",
            ),
            click.option(
                "--capacity",
                type=click.IntRange(min=1),
                help="Engines: the most new tokens [the model's usual most].",
            ),
            click.option(
                "--compute-capability",
                "compute_capabilities",
                multiple=True,
                metavar="X.Y",
                help="Engines: GPUs to build for, such as 8.9,12.0 [Ampere and later].",
            ),
            click.option(
                "--refittable",
                is_flag=True,
                help="Engines: let them take new weights later.",
            ),
        )
    ):
        command = option(command)
    return command


def requested(
    target: Target,
    precision: Precision,
    profiles: tuple[Sizes, ...],
    source_length: Sizes | None,
    capacity: int | None,
    compute_capabilities: tuple[str, ...],
    refittable: bool,
) -> EngineRequest | None:
    """What the options ask of the engines of a target; None: it has none.

    Raises:
        DragomanError: they make no sense for the target, or its package cannot build that.
        BackendError: the target's package is missing.
    """
    from dragoman.runtime.format.manifest import TENSORRT_TARGETS

    named = [c for given in compute_capabilities for c in given.replace(",", " ").split()]
    capabilities = tuple(dict.fromkeys(named))
    if target not in TENSORRT_TARGETS:
        given = {
            "--profile": profiles,
            "--source-length": source_length,
            "--capacity": capacity,
            "--compute-capability": capabilities,
            "--refittable": refittable,
        }
        for name, value in given.items():
            if value:
                raise DragomanError(
                    f"{name} is for engines: expected --target tensorrt-rtx or tensorrt, found "
                    f"{target}"
                )
        return None
    from dragoman.optimize.tensorrt.capabilities import check_capabilities
    from dragoman.runtime.backends.tensorrt.packages import find_package

    check_capabilities(find_package(target), capabilities, precision)  # before it takes time
    batches = profiles or (sizes(DEFAULT_PROFILE),)
    return EngineRequest(batches, source_length, capacity, capabilities, refittable)
