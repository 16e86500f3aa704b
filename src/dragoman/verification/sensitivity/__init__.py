"""Measures how far each product in int8 or int4 moves the predictions of a model.

It also measures what keeping the worst products in fp32 gains. Reading order: results, variants,
measuring.
"""

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
