"""What a bundle says of its engines: what made them, what they take, and what they are made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Range:
    """Sizes of an axis that an engine takes; it is fastest at the best."""

    smallest: int
    best: int
    largest: int

    @property
    def in_order(self) -> bool:
        """Whether it is a range."""
        return 1 <= self.smallest <= self.best <= self.largest


@dataclass(frozen=True)
class Profile:
    """Sizes that kernels are chosen for, of both engines: rows of a batch, tokens of a source."""

    batch: Range
    source: Range


@dataclass(frozen=True)
class EngineReport:
    """What an engine is made of.

    Attributes:
        layers: of the network as the parser made it, by kind
        weights: bytes of the graph's weights, by number format
        attentions: attention layers
        fused: kernels of fused attention in the engine by name, for each profile anew; None: the
            engine does not say
        dequantizations: products whose weights a kernel of its own dequantizes first, in every run,
            for each profile anew; None: the engine does not say
    """

    layers: dict[str, int]
    weights: dict[str, int]
    attentions: int
    fused: dict[str, int] | None
    dequantizations: int | None


@dataclass(frozen=True)
class Engines:
    """The engines of a bundle; its target is the package that made them.

    Attributes:
        version: of that package; another one does not load them
        cuda_version: that it was made for
        compute_capabilities: GPUs that the engines were asked to be for, such as "8.9"; none: the
            package's default
        capacity: target positions that a cache holds, the start token's included
        profiles: in the engines' order
        refittable: whether new weights can be put into them
    """

    version: str
    cuda_version: str
    compute_capabilities: tuple[str, ...]
    capacity: int
    profiles: tuple[Profile, ...]
    refittable: bool
    encoder: EngineReport
    decoder: EngineReport
