"""NVIDIA GPUs: their memory, streams and graphs; shared by all backends that run on one.

Reading order: device, layout, workspace, memory, steps, state, backend.
"""

from .device import Device, Gpu, find_gpu

__all__ = ["Device", "Gpu", "find_gpu"]
