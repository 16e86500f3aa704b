"""Which failures of ONNX Runtime's CUDA provider leave the GPU unusable."""

from __future__ import annotations

import re

from ...cuda.errors import LOST
from ...errors import BackendError, DeviceLostError

CUDA_FAILURE = re.compile(r"CUDA failure (\d+)|CUDA error (\d+)")
"""How the provider states CUDA's error code."""


def cuda_failure(message: str) -> BackendError | DeviceLostError:
    """The exception for a message of the provider."""
    match = CUDA_FAILURE.search(message)
    lost = match is not None and int(match[1] or match[2]) in LOST.values()
    return DeviceLostError(message) if lost else BackendError(message)
