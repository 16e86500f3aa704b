"""The memory bandwidth of a GPU, and the share of it that decoding steps use.

A step of a few rows takes as long as the GPU's memory takes to deliver the weights and the caches.
The share of the bandwidth says how close a step comes to that limit.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

from dragoman.runtime import Bundle
from dragoman.runtime.backends.cuda import Device
from dragoman.runtime.backends.cuda.layout import SIZES
from dragoman.runtime.format.contract import ROLES, Owner
from dragoman.runtime.format.manifest import TensorRTEngines
from dragoman.runtime.format.onnx_graph import bytes_read

BYTES = 1 << 30
COPIES = 20


@dataclass(frozen=True)
class Bandwidth:
    """The memory bandwidth of a GPU, in 10^9 bytes per second."""

    peak: float | None
    """From the clock rate and the bus width of the memory; None: the driver gives neither."""
    copied: float
    """Measured by copies within the memory, read and written."""

    def share(self, size: float, milliseconds: float) -> float:
        """Return the share of the peak, or else of `copied`, at which bytes are read."""
        return size / milliseconds / 1e6 / (self.peak or self.copied)


def measure_bandwidth(device: Device) -> Bandwidth:
    """Measure the bandwidth of the memory of a GPU."""
    return Bandwidth(peak_bandwidth(device.index), round(copy_bandwidth(device), 1))


def peak_bandwidth(index: int = 0) -> float | None:
    """Compute the peak bandwidth in 10^9 bytes per second; None: the driver does not describe it.

    The memory transfers data twice in a clock cycle.
    """
    from cuda.bindings import runtime

    known = runtime.cudaDeviceAttr
    values: list[int] = []
    for attribute in (known.cudaDevAttrMemoryClockRate, known.cudaDevAttrGlobalMemoryBusWidth):
        status, value = runtime.cudaDeviceGetAttribute(attribute, index)
        values.append(int(value) if status == runtime.cudaError_t.cudaSuccess else 0)
    kilohertz, bits = values
    return round(2 * kilohertz * 1e3 * bits / 8 / 1e9, 1) or None


def copy_bandwidth(device: Device) -> float:
    """Measure the bandwidth of copies within a GPU, in 10^9 bytes per second, read and written.

    Blocks have 1 GiB, or less where little memory is free.
    """
    size = min(BYTES, device.free_memory() // 4)
    stream = device.new_stream()
    blocks: list[int] = []
    try:
        blocks += [device.allocate(size), device.allocate(size)]
        device.copy(blocks[1], blocks[0], size, stream)
        device.synchronize(stream)
        started = time.perf_counter()
        for _ in range(COPIES):
            device.copy(blocks[1], blocks[0], size, stream)
        device.synchronize(stream)
        return 2 * COPIES * size / (time.perf_counter() - started) / 1e9
    finally:
        for block in blocks:
            device.free(block)
        device.free_stream(stream)


def step_bytes(bundle: Bundle, rows: int, source: float, target: float) -> int:
    """Compute the bytes that a decoding step must read: weights, and the filled part of caches.

    Each row has a source of so many tokens, and `target` filled positions of caches on average.
    """
    decoder = bundle.manifest.graphs["decoder"]
    engines = bundle.manifest.executable
    if isinstance(engines, TensorRTEngines):
        weights = sum(engines.reports["decoder"].weights.values())
    else:
        weights = bytes_read(bundle.graph_path("decoder").read_bytes())
    sizes = {"batch": rows, "source_batch": rows, "source": source, "capacity": target}
    cached = 0.0
    for tensor in decoder.inputs:
        if tensor.owner in (Owner.DECODER_ROW, Owner.ENCODER_ROW):
            axes: tuple[Any, ...] = ROLES[tensor.role].axes
            shape = [float(sizes.get(axis, n)) for axis, n in zip(axes, tensor.shape, strict=True)]
            cached += SIZES[tensor.dtype] * math.prod(shape)
    return weights + round(cached)
