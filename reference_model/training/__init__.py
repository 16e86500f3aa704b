"""Training of the reference model."""

from typing import TYPE_CHECKING

from dragoman.lazy import lazy_attributes

if TYPE_CHECKING:
    from .options import TrainingOptions
    from .trainer import Epoch, train
else:
    __getattr__ = lazy_attributes(
        __name__,
        {"options": ("TrainingOptions",), "trainer": ("Epoch", "train")},
    )

__all__ = ["Epoch", "TrainingOptions", "train"]
