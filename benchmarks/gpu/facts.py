"""What this GPU is, and what no program can be faster than on it."""

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
    facts: dict[str, Any] = {
        "gpu": gpu.name,
        "compute_capability": gpu.compute_capability,
        "driver": _driver(),
        "free_memory_gb": round(device.free_memory() / 1e9, 1),
        "gigabytes_per_second": round(bandwidth(device), 1),
        "microseconds_per_launch": round(launch_latency(device), 2),
    }
    (output / "device.json").write_text(json.dumps(facts, indent=1) + "\n")


def bandwidth(device: Device) -> float:
    """Bytes read and written in a copy of a gigabyte within the device, 1e9 per second."""
    stream = device.new_stream()
    source, to = device.allocate(BYTES), device.allocate(BYTES)
    try:
        device.copy(to, source, BYTES, stream)
        device.synchronize(stream)
        started = time.perf_counter()
        for _ in range(COPIES):
            device.copy(to, source, BYTES, stream)
        device.synchronize(stream)
        return 2 * COPIES * BYTES / (time.perf_counter() - started) / 1e9
    finally:
        device.free(to)
        device.free(source)
        device.free_stream(stream)


def launch_latency(device: Device) -> float:
    """Of a graph that clears eight bytes, one launch after another, in microseconds."""
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


def shortest_step(device: dict[str, Any], megabytes: float) -> float:
    """Milliseconds that reading so many megabytes takes, and launching; 0 where it is not known.

    Of a whole bundle it is too much by the encoder, which a step does not read: the share of this
    floor that a step reaches is then overstated by at most that.
    """
    if "gigabytes_per_second" not in device or not megabytes:
        return 0.0
    reading = megabytes / device["gigabytes_per_second"]
    return float(reading + device["microseconds_per_launch"] / 1e3)


def _driver() -> str:
    from cuda.bindings import runtime

    _, version = runtime.cudaDriverGetVersion()
    return f"CUDA {version // 1000}.{version % 1000 // 10}"


if __name__ == "__main__":
    main()
