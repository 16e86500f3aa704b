"""Measures how far each product in int8 or int4 moves a model's predictions."""

from .results import Effect, Keeping, LayerSensitivity, ProductSensitivity, Sensitivity

__all__ = ["Effect", "Keeping", "LayerSensitivity", "ProductSensitivity", "Sensitivity"]
