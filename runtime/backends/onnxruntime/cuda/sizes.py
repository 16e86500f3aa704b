"""The sizes that batches are rounded up to, so that captured graphs can be launched again."""

from __future__ import annotations

from ....format.model_spec import ModelSpec
from ...cuda.layout import Sizes, multiple_of, power_of_two

SOURCE_STEP = 16
"""Lengths of sources are multiples of this."""

CAPACITY_STEP = 64
"""Target positions are multiples of this. Every step attends to all of them; on a GPU that costs
less than a separate graph for every length."""


class PositionRounding:
    """Within the positions of a model. See `layout.Rounding`."""

    def __init__(self, model: ModelSpec) -> None:
        self._model = model

    def first(self, sources: int, source: int, capacity: int, width: int) -> Sizes:
        return Sizes(
            0,
            power_of_two(sources),
            max(1, min(multiple_of(SOURCE_STEP, source), self._model.max_source_positions)),
            min(multiple_of(CAPACITY_STEP, capacity), self._model.max_target_positions),
            width,
        )

    def after(self, present: Sizes, sources: int) -> Sizes:
        return present._replace(sources=power_of_two(sources))
