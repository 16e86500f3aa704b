"""Latency and throughput of one bundle: encoder and decoder separately, percentiles, memory, load
time.

The end token is ignored, so that every batch does the same work.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from dragoman import __version__
from dragoman.errors import DragomanError
from dragoman.optimize.random_sources import random_sources
from dragoman.runtime import load
from dragoman.runtime.backends import default_backend
from dragoman.runtime.decoding.batching import as_batch

from .machine import machine, peak_memory_mb

PERCENTILES = (50, 90, 99)
BATCH_SIZES, WINDOWS = (1, 8, 32), (1, 4)
"""Batch sizes that are measured by default, for text and for speech models."""


@dataclass(frozen=True)
class Percentiles:
    """Percentiles of durations, in milliseconds."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Percentiles:
        return cls(*(round(float(p) * 1e3, 4) for p in np.percentile(seconds, PERCENTILES)))


@dataclass(frozen=True)
class BatchFigures:
    """The figures of one batch size.

    Attributes:
        encoder: one call of the encoder, caches allocated, ms
        step: one decoding step of the whole batch, ms
        sentence: from source tokens to the last new token, for each sentence of the batch, ms
        tokens_per_second: new tokens of all rows over the median time of a batch
    """

    batch_size: int
    encoder: Percentiles
    step: Percentiles
    sentence: Percentiles
    tokens_per_second: float


@dataclass(frozen=True)
class BenchReport:
    bundle: str
    precision: str
    backend: str
    threads: int | None
    source_length: int
    new_tokens: int
    runs: int
    load_seconds: float
    peak_memory_mb: float
    bundle_mb: float
    batches: tuple[BatchFigures, ...]
    machine: str
    versions: dict[str, str]
    command: str

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"


def bench(
    directory: Path,
    *,
    backend: str | None,
    threads: int | None,
    batch_sizes: Sequence[int] | None = None,
    source_length: int,
    new_tokens: int,
    runs: int,
    command: str,
    progress: Callable[[], None] = lambda: None,
) -> BenchReport:
    """Measure a bundle on random tokens, after one warm-up run of each batch size.

    Args:
        batch_sizes: None: `BATCH_SIZES`, or `WINDOWS` for a speech model
        source_length: tokens of every source; for a speech model, always a window's
        new_tokens: decoding steps of every batch
        runs: batches to measure for each size
        progress: called after each run, including warm-up runs
    """
    started = time.perf_counter()
    model = load(directory, threads=threads, backend=backend)
    load_seconds = time.perf_counter() - started
    spec = model.manifest.model
    if spec.takes_audio:
        source_length = spec.max_source_positions
        batch_sizes = batch_sizes or WINDOWS
    for name, requested, largest in (
        ("source length", source_length, spec.max_source_positions),
        ("new tokens", new_tokens, spec.max_target_positions),
    ):
        if requested > largest:
            raise DragomanError(
                f"{name}: expected at most {largest}, the positions of this model, found "
                f"{requested}"
            )
    figures = []
    for size in batch_sizes or BATCH_SIZES:
        source, mask = as_batch(
            random_sources(model.manifest, [source_length] * size, np.random.default_rng(0)), spec
        )
        prompt = np.full((size, 1), spec.start_token_id)
        encoder: list[float] = []
        step: list[float] = []
        sentence: list[float] = []
        for run in range(runs + 1):
            clock = [time.perf_counter()]
            state = model.backend.start(source, mask, prompt, new_tokens)
            clock.append(time.perf_counter())
            for _ in range(new_tokens):
                state.step()
                clock.append(time.perf_counter())
            state.close()
            if run > 0:
                durations = np.diff(clock)
                encoder.append(durations[0])
                step.extend(durations[1:])
                sentence.append(clock[-1] - clock[0])
            progress()
        median = float(np.median(sentence))
        figures.append(
            BatchFigures(
                size,
                Percentiles.of(encoder),
                Percentiles.of(step),
                Percentiles.of(sentence),
                round(size * new_tokens / median, 1),
            )
        )
    return BenchReport(
        bundle=model.manifest.name,
        precision=model.manifest.precision,
        backend=backend or default_backend(model.bundle),
        threads=threads,
        source_length=source_length,
        new_tokens=new_tokens,
        runs=runs,
        load_seconds=round(load_seconds, 4),
        peak_memory_mb=round(peak_memory_mb(), 1),
        bundle_mb=round(model.bundle.size / 1e6, 2),
        batches=tuple(figures),
        machine=machine(),
        versions={
            "dragoman": __version__,
            "python": platform.python_version(),
            "onnxruntime": _version("onnxruntime"),
            "numpy": np.__version__,
        },
        command=command,
    )


def _version(package: str) -> str:
    """The version of an installed package; ONNX Runtime's package has two names."""
    for name in (package, f"{package}-gpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "not installed"
