"""Training a reference Transformer."""

from .history import Epoch
from .trainer import TrainingOptions, train

__all__ = ["Epoch", "TrainingOptions", "train"]
