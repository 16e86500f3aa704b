"""NVIDIA GPUs: finding one, its memory, streams and graphs; shared by all backends on a GPU.

Reading order: device, driver, layout, arena, workspace, results, memory, positions, flight,
prediction, state, backend.
"""

from .device import Device
from .gpu import Gpu, find_gpu

__all__ = ["Device", "Gpu", "find_gpu"]
