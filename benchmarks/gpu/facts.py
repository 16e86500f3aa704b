"""What this GPU is, and what no program can be faster than on it."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import click

from dragoman.benchmarks.shapes import SHAPES
from dragoman.runtime.backends.cuda import Device, find_gpu

SOURCE_LENGTH, NEW_TOKENS = 32, 64
"""As `compare` measures, unless told otherwise."""

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
        "cuda": gpu.cuda,
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


BYTES_OF: dict[str, tuple[float, float]] = {
    "fp32": (4.0, 4.0),
    "fp16": (2.0, 2.0),
    "float16": (2.0, 2.0),
    "CUDA int8": (1.0, 4.0),
    "CUDA int4": (0.5625, 4.0),
    "int8": (1.0, 2.0),
    "int4": (0.5625, 2.0),
}
"""Of a weight and of an activation, by what a contender's name holds; int4 with its scales."""


def shortest_step(device: dict[str, Any], shape: str, contender: str, batch: int) -> float:
    """Milliseconds in which a decoding step can at best be done, reading what it must once: the
    decoder's weights, the projection to the vocabulary, the cross keys and values, and half the
    caches, which fill up as decoding goes on; and one launch. 0 where that is not known.

    Args:
        shape: as `compare` records it, such as "Marian big, vocabulary 32000, random weights"
    """
    formats = [sizes for name, sizes in BYTES_OF.items() if name in contender]
    known = next((s for name, s in SHAPES.items() if f" {name}," in shape), None)
    vocabulary = re.search(r"vocabulary (\d+)", shape)
    if "gigabytes_per_second" not in device or not formats or known is None or vocabulary is None:
        return 0.0
    weight, activation = formats[0]
    width, layers = known["d_model"], known["layers"]
    weights = layers * (6 * width**2 + 2 * width * known["d_ff"]) + int(vocabulary[1]) * width
    positions = SOURCE_LENGTH + NEW_TOKENS / 2
    caches = batch * layers * 2 * positions * width
    reading = (weights * weight + caches * activation) / device["gigabytes_per_second"] / 1e6
    return float(reading + device["microseconds_per_launch"] / 1e3)


def _driver() -> str:
    """As the driver states it itself."""
    file = Path("/proc/driver/nvidia/version")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return lines[0].partition(":")[2].strip() if lines else "unknown"


if __name__ == "__main__":
    main()
