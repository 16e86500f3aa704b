"""The options that a model's engines are built with."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.runtime.format.executables import Profile


@dataclass(frozen=True)
class EngineOptions:
    """
    Attributes:
        profiles: at least one
        capacity: target positions, including the start token's
        compute_capabilities: of the GPUs to build for, such as "8.9"; none: the package's default
        refittable: whether new weights can be put into the engines later
    """

    profiles: tuple[Profile, ...]
    capacity: int
    compute_capabilities: tuple[str, ...] = ()
    refittable: bool = False
