"""Training of the reference model."""

from typing import TYPE_CHECKING

from dragoman.lazy import lazy_attributes

if TYPE_CHECKING:
    from .history import Epoch
    from .options import TrainingOptions
    from .trainer import train
else:
    __getattr__ = lazy_attributes(
        __name__,
        {"history": ("Epoch",), "options": ("TrainingOptions",), "trainer": ("train",)},
    )

__all__ = ["Epoch", "TrainingOptions", "train"]
