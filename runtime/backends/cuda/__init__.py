"""NVIDIA GPUs: finding one, its memory, its streams and graphs; what all backends on one share.

Reading order: device, driver, layout, arena, workspace, state, backend.
"""

from .device import Device
from .gpu import Gpu, find_gpu

__all__ = ["Device", "Gpu", "find_gpu"]
