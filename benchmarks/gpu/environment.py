"""The GPU and its driver, with the two figures that bound every step: memory bandwidth and launch
latency.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from dragoman.runtime.backends.cuda import Device, find_gpu

BYTES = 1 << 30
COPIES = 20
LAUNCHES = 1000


@click.command()
@click.option("--output", type=click.Path(path_type=Path), required=True)
def main(output: Path) -> None:
    """Write device.json."""
    from dragoman.runtime.backends.cuda.driver import CudaDevice

    gpu, device = find_gpu(), CudaDevice()
    environment: dict[str, Any] = {
        "gpu": gpu.name,
        "compute_capability": gpu.compute_capability,
        "driver": _driver(),
        "cuda": gpu.cuda,
        "free_memory_gb": round(device.free_memory() / 1e9, 1),
        "gigabytes_per_second": round(bandwidth(device), 1),
        "microseconds_per_launch": round(launch_latency(device), 2),
    }
    (output / "device.json").write_text(json.dumps(environment, indent=1) + "\n")


def bandwidth(device: Device) -> float:
    """Memory bandwidth in 10^9 bytes per second: bytes read and written by copies of 1 GiB within
    the device.
    """
    stream = device.new_stream()
    source, target = device.allocate(BYTES), device.allocate(BYTES)
    try:
        device.copy(target, source, BYTES, stream)
        device.synchronize(stream)
        started = time.perf_counter()
        for _ in range(COPIES):
            device.copy(target, source, BYTES, stream)
        device.synchronize(stream)
        return 2 * COPIES * BYTES / (time.perf_counter() - started) / 1e9
    finally:
        device.free(target)
        device.free(source)
        device.free_stream(stream)


def launch_latency(device: Device) -> float:
    """Microseconds per launch of a CUDA graph that clears eight bytes, launched back to back."""
    stream, memory = device.new_stream(), device.allocate(8)
    device.begin_capture(stream)
    device.clear(memory, 8, stream)
    graph = device.end_capture(stream)
    try:
        device.launch(graph, stream)
        device.synchronize(stream)
        started = time.perf_counter()
        for _ in range(LAUNCHES):
            device.launch(graph, stream)
        device.synchronize(stream)
        return (time.perf_counter() - started) / LAUNCHES * 1e6
    finally:
        device.free_graph(graph)
        device.free(memory)
        device.free_stream(stream)


def _driver() -> str:
    """The version that the NVIDIA driver reports."""
    file = Path("/proc/driver/nvidia/version")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return lines[0].partition(":")[2].strip() if lines else "unknown"


if __name__ == "__main__":
    main()
