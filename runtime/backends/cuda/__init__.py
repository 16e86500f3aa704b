"""Memory, streams and graphs of NVIDIA GPUs, shared by all GPU backends.

Reading order: device, layout, workspace, memory, steps, state, backend.
"""

from .device import Device, Gpu, find_gpu, gpu_driver

__all__ = ["Device", "Gpu", "find_gpu", "gpu_driver"]
