"""Dragoman takes a trained Transformer from PyTorch to deployment."""

import os

from .errors import DragomanError

# ONNX Runtime from 1.29 on sends telemetry unless this is set before it is imported
# (microsoft/onnxruntime, pull request 27379). Who wants it sets 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__version__ = "0.1.0"

__all__ = ["DragomanError", "__version__"]
