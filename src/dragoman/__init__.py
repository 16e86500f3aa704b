"""Dragoman takes a trained Transformer from PyTorch to deployment."""

from .errors import DragomanError

__version__ = "0.1.0"

__all__ = ["DragomanError", "__version__"]
