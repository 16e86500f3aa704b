"""Describes the GPU, and computes a lower bound for the time of a decoding step.

The bound follows from the measured memory bandwidth and launch latency.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import click

from dragoman.runtime.backends.cuda import Device, find_gpu

from ..models.shapes import SHAPES

BYTES = 1 << 30
COPIES = 20
LAUNCHES = 1000


@click.command()
@click.option("--output", type=click.Path(path_type=Path), required=True)
def main(output: Path) -> None:
    """Write device.json."""
    gpu, device = find_gpu(), Device()
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
    """Measure the memory bandwidth in 10^9 bytes per second, read and written.

    Copies of 1 GiB within the device are timed.
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
    """Measure the microseconds per CUDA graph launch, back to back."""
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
    """Read the version of the NVIDIA driver."""
    file = Path("/proc/driver/nvidia/version")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return lines[0].partition(":")[2].strip() if lines else "unknown"


SOURCE_LENGTH, NEW_TOKENS = 32, 64
"""The defaults of `compare`, by which `time_split` measures."""

BYTES_OF: dict[str, tuple[float, float]] = {
    "fp32": (4.0, 4.0),
    "fp16": (2.0, 2.0),
    "bf16": (2.0, 2.0),
    "float16": (2.0, 2.0),
    "CUDA int8": (1.0, 4.0),
    "CUDA int4": (0.5625, 4.0),
    "int8": (1.0, 2.0),
    "int4": (0.5625, 2.0),
}
"""Bytes of a weight and of an activation, by the first key that a contender's name contains; those
of an int4 weight include its scale."""


def shortest_step(
    device: dict[str, Any],
    shape: str,
    contender: str,
    batch: int,
    *,
    source_length: float = SOURCE_LENGTH,
    new_tokens: int = NEW_TOKENS,
) -> float:
    """Compute the shortest time of a decoding step, in milliseconds.

    Such a step reads its data once, at the memory's bandwidth, in one launch.

    The data are the decoder's weights, the projection to the vocabulary, the cross-attention keys
    and values, and on average half of the self-attention caches, which fill up during decoding.

    Args:
        device: device record written by `main`
        shape: shape recorded by `compare`, such as "Marian big, vocabulary 32000, random weights"
        source_length: mean source length

    Returns:
        the time; 0 if the device, the shape or the precision is unknown
    """
    formats = [sizes for name, sizes in BYTES_OF.items() if name in contender]
    sizes = next((s for name, s in SHAPES.items() if f" {name}," in shape), None)
    vocabulary = re.search(r"vocabulary (\d+)", shape)
    if "gigabytes_per_second" not in device or not formats or sizes is None or vocabulary is None:
        return 0.0
    weight, activation = formats[0]
    width, layers = sizes.d_model, sizes.layers
    weights = layers * (6 * width**2 + 2 * width * sizes.d_ff) + int(vocabulary[1]) * width
    positions = source_length + new_tokens / 2
    caches = batch * layers * 2 * positions * width
    reading = (weights * weight + caches * activation) / device["gigabytes_per_second"] / 1e6
    return float(reading + device["microseconds_per_launch"] / 1e3)


def with_floor(row: dict[str, Any], device: dict[str, Any]) -> dict[str, Any]:
    """Add the shortest step, and the kernels' time beyond it, to a row of `time_split`.

    Unknown values are "".
    """
    floor = shortest_step(device, row["shape"], row["contender"], row["batch"])
    known = floor and row["kernels"] != ""
    return {
        **row,
        "floor": round(floor, 4) if floor else "",
        "kernels beyond the floor": round(row["kernels"] - floor, 4) if known else "",
    }


if __name__ == "__main__":
    main()
