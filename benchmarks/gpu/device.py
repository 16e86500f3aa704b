"""Describes the device and its memory, and computes what a decoding step reads.

On the processor, the memory is that of a process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dragoman.runtime import Model
from dragoman.runtime.backends.cuda import Device, find_gpu
from dragoman.runtime.backends.machine import describe_machine

from ..bandwidth import Bandwidth, measure_bandwidth
from ..machine import machine
from ..models.shapes import SHAPES
from ..processes.memory import memory_mb
from .parts import command


def describe(workspace: Path, device: str) -> Iterator[dict[str, Any]]:
    """Describe the GPU, then measure its bandwidth."""
    if device == "cpu":
        yield {"gpu": f"none, on the processor: {machine()}", "driver": "none"}
        return
    gpu, opened = find_gpu(), Device()
    found: dict[str, Any] = {
        "gpu": gpu.name,
        "compute_capability": gpu.compute_capability,
        "driver": describe_machine("onnxruntime-cuda").versions.get("NVIDIA driver", "unknown"),
        "cuda": gpu.cuda,
        "free_memory_gb": round(opened.free_memory() / 1e9, 1),
    }
    yield found
    bandwidth = measure_bandwidth(opened)
    yield found | {"peak_gb_per_second": bandwidth.peak, "copied_gb_per_second": bandwidth.copied}


def memory_meter(device: str, pid: int | None = None) -> Callable[[], float]:
    """Return a function that returns the megabytes taken since this call.

    On the device "cuda", the memory of the whole GPU counts; on "cpu", that of a process.
    """
    if device == "cpu":
        process = pid or os.getpid()
        before = memory_mb(process)
        return lambda: memory_mb(process) - before
    gpu = Device()
    free = gpu.free_memory()
    return lambda: (free - gpu.free_memory()) / 1e6


def steps_of(model: Model) -> dict[str, int]:
    """Return how many decoding steps ran as CUDA graphs and how many directly, by column."""
    steps = getattr(model.backend, "steps", None)  # only backends on a GPU count them
    return {"captured": steps.captured, "direct": steps.direct} if steps else {}


BYTES = {"fp16": 2, "float16": 2, "bf16": 2, "bfloat16": 2, "fp32": 4}
"""Bytes of a number, by the precision at the end of a contender's name."""


def bandwidth_share(
    device: dict[str, Any],
    shape: str,
    contender: str,
    batch: int,
    ms_per_step: float,
    *,
    source_length: float,
    new_tokens: int,
) -> float | None:
    """Compute the share of the memory's bandwidth that a decoding step of any tool uses.

    A step reads the decoder's weights, the projection to the vocabulary, the cross-attention keys
    and values, and on average half of the self-attention caches, which fill up during decoding.
    The device is what `describe` yields, the shape is described as by `compare`. If one of them or
    the precision is unknown, None is returned.
    """
    size = BYTES.get(contender.split()[-1])
    sizes = next((s for name, s in SHAPES.items() if f" {name}," in shape), None)
    vocabulary = re.search(r"vocabulary (\d+)", shape)
    if "copied_gb_per_second" not in device or size is None or sizes is None or vocabulary is None:
        return None
    weights = sizes.layer_weights + int(vocabulary[1]) * sizes.d_model
    read = (weights + batch * sizes.cached(source_length + new_tokens / 2)) * size
    known = Bandwidth(device["peak_gb_per_second"], device["copied_gb_per_second"])
    return known.share(read, ms_per_step)


main = command("device", describe)

if __name__ == "__main__":
    main()
