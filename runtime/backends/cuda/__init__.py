"""NVIDIA's GPUs: finding one, its memory, its streams and graphs."""

from .device import Device
from .gpu import Gpu, find_gpu

__all__ = ["Device", "Gpu", "find_gpu"]
