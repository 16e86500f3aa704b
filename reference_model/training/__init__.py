"""Training of the reference model."""

from typing import TYPE_CHECKING

from dragoman.lazy import lazy_attributes

if TYPE_CHECKING:
    from .history import Candidate, Epoch
    from .options import TrainingOptions, TrainingStoppedError
    from .trainer import TrainingResult, train
else:
    __getattr__ = lazy_attributes(
        __name__,
        {
            "history": ("Candidate", "Epoch"),
            "options": ("TrainingOptions", "TrainingStoppedError"),
            "trainer": ("TrainingResult", "train"),
        },
    )

__all__ = [
    "Candidate",
    "Epoch",
    "TrainingOptions",
    "TrainingResult",
    "TrainingStoppedError",
    "train",
]
