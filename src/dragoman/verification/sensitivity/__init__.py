"""Measures how far each product in int8 or int4 moves a model's predictions."""

from typing import TYPE_CHECKING

from dragoman.lazy import lazy_attributes

if TYPE_CHECKING:
    from .results import Effect, Keeping, LayerSensitivity, ProductSensitivity, Sensitivity
else:
    __getattr__ = lazy_attributes(
        __name__,
        {
            "results": (
                "Effect",
                "Keeping",
                "LayerSensitivity",
                "ProductSensitivity",
                "Sensitivity",
            ),
        },
    )

__all__ = ["Effect", "Keeping", "LayerSensitivity", "ProductSensitivity", "Sensitivity"]
