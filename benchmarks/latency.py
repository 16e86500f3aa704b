"""Measures latency, throughput, memory and load time of one bundle, graph by graph.

The end token is ignored, so that every batch does the same work. `measure_speed` measures several
bundles in turns, each in a process of its own.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from statistics import median

import numpy as np

from dragoman import __version__
from dragoman.errors import DragomanError
from dragoman.optimize.step_inputs import random_sources
from dragoman.progress import resident_mb
from dragoman.runtime import Bundle, Model, load
from dragoman.runtime.backends import check_backend
from dragoman.runtime.backends.cuda.backend import DeviceBackend
from dragoman.runtime.backends.cuda.state import DeviceState
from dragoman.runtime.decoding.request import as_batch
from dragoman.runtime.format.model_spec import ModelSpec
from dragoman.runtime.format.plain_data import Problems, from_plain
from dragoman.tested_versions import installed_version
from dragoman.verification.report.contents import BatchFigures, Percentiles, Speed, Timing

from .bandwidth import Bandwidth, measure_bandwidth, step_bytes
from .machine import machine

BATCH_SIZES, WINDOWS = (1, 8, 32), (1, 4)
"""The batch sizes that are measured by default, for text and for speech models."""
SOURCE_LENGTH, NEW_TOKENS = 32, 64
"""Tokens by default, or as many as the model has positions for."""

LENGTHS = (8, 32, 128)
"""Tokens of the sources that are measured, as far as the model has positions."""
RUNS = 3


@dataclass(frozen=True)
class MemoryReads:
    """What a decoding step of one batch size reads from the memory of a GPU."""

    batch_size: int
    step_mb: float
    """Weights, and the filled part of the caches, in 10^6 bytes."""
    share_of_bandwidth: float
    """These bytes over the median step, as a share of the peak bandwidth; of the bandwidth of
    copies if the driver does not describe the peak."""


@dataclass(frozen=True)
class BenchReport:
    """The figures of a bundle, and the circumstances of the measurement."""

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
    bandwidth: Bandwidth | None
    memory_reads: tuple[MemoryReads, ...]
    """The bandwidth of the GPU is None on the processor, where no reads are recorded."""
    machine: str
    versions: dict[str, str]
    command: str

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(asdict(self), indent=1) + "\n"


def bench(
    directory: Path,
    *,
    backend: str | None,
    device: str | None = None,
    allow_fallback: bool = False,
    threads: int | None,
    batch_sizes: Sequence[int] | None = None,
    source_length: int | None = None,
    new_tokens: int | None = None,
    runs: int,
    command: str,
    progress: Callable[[], None] = lambda: None,
) -> BenchReport:
    """Measure a bundle on random tokens, after one warm-up run of each batch size.

    Args:
        batch_sizes: None: `BATCH_SIZES`, or `WINDOWS` for a speech model
        source_length: tokens of every source or prompt; None: `SOURCE_LENGTH`, or a window's
        new_tokens: decoding steps; None: `NEW_TOKENS`, or none for an encoder-only model
        runs: measured batches per size
        progress: called after each run, including warm-up runs

    Raises:
        DragomanError: the bundle cannot be loaded, or the lengths exceed the model's positions.
    """
    started = time.perf_counter()
    model = load(
        directory,
        threads=threads,
        backend=backend,
        device=device,
        check="never",
        allow_fallback=allow_fallback,
    )
    load_seconds = time.perf_counter() - started
    spec = model.manifest.model
    if spec.takes_audio:
        source_length = spec.max_source_positions
        batch_sizes = batch_sizes or WINDOWS
    source_length, new_tokens = _lengths(spec, source_length, new_tokens)
    figures = []
    for size in batch_sizes or BATCH_SIZES:
        timed = []
        for _ in range(runs + 1):
            timed.append(_timed(model, size, source_length, new_tokens))
            progress()
        parts = {part: [s for run in timed[1:] for s in run[part]] for part in timed[0]}
        named = {part: Percentiles.of(seconds) for part, seconds in parts.items() if seconds}
        sentence = [sum(map(sum, run.values())) for run in timed[1:]]
        speed = round(size * (new_tokens or source_length) / float(np.median(sentence)), 1)
        encoder, prompt, step = (named.get(part) for part in ("encoder", "prompt", "step"))
        figures.append(BatchFigures(size, encoder, prompt, step, Percentiles.of(sentence), speed))
    used = model.backend
    bandwidth = measure_bandwidth(used.device) if isinstance(used, DeviceBackend) else None
    filled = new_tokens / 2 + (0 if spec.has_encoder else source_length)  # on average
    reads = []
    for batch in figures:
        if bandwidth is not None and batch.step is not None:
            read = step_bytes(model.bundle, batch.batch_size, source_length, filled)
            share = bandwidth.share(read, batch.step.p50)
            reads.append(MemoryReads(batch.batch_size, round(read / 1e6, 3), round(share, 4)))
    record = check_backend(model.bundle, backend, device)
    onnxruntime = installed_version("onnxruntime") or installed_version("onnxruntime-gpu")
    versions = {"onnxruntime": onnxruntime or "not installed"}
    if record.name == "openvino":
        versions["openvino"] = installed_version("openvino") or "not installed"
    return BenchReport(
        bundle=model.manifest.name,
        precision=model.manifest.precision,
        backend=record.name,
        threads=threads,
        source_length=source_length,
        new_tokens=new_tokens,
        runs=runs,
        load_seconds=round(load_seconds, 4),
        peak_memory_mb=round(resident_mb()[1], 1),
        bundle_mb=round(model.bundle.size / 1e6, 2),
        batches=tuple(figures),
        bandwidth=bandwidth,
        memory_reads=tuple(reads),
        machine=machine(),
        versions={
            "dragoman": __version__,
            "python": platform.python_version(),
            **versions,
            "numpy": np.__version__,
        },
        command=command,
    )


def _lengths(
    model: ModelSpec, source_length: int | None, new_tokens: int | None
) -> tuple[int, int]:
    """Return the numbers of source and new tokens: the options, or the model's maximum."""
    if not model.has_decoder:
        if new_tokens is not None:
            expected = "new tokens: expected none, this model decodes nothing"
            raise DragomanError(f"{expected}, found {new_tokens}")
        new_tokens = 0
    most = _longest_source(model, new_tokens or NEW_TOKENS)
    read = min(SOURCE_LENGTH, most) if source_length is None else source_length
    left = model.max_target_positions - (0 if model.has_encoder else read)
    new = min(NEW_TOKENS, left) if new_tokens is None else new_tokens
    for name, found, largest in (("source length", read, most), ("new tokens", new, left)):
        if found > largest:
            raise DragomanError(
                f"{name}: expected at most {largest}, the positions of this model, found {found}"
            )
    return read, new


def _longest_source(model: ModelSpec, new_tokens: int) -> int:
    most = model.input_positions
    return most if model.has_encoder else most - min(new_tokens, most - 1)  # shared with the prompt


def _timed(model: Model, size: int, source_length: int, new_tokens: int) -> dict[str, list[float]]:
    """Return the seconds of a call of the encoder, of prompts and of steps of one batch."""
    manifest, spec = model.manifest, model.manifest.model
    sources = random_sources(manifest, [source_length] * size, np.random.default_rng(0))
    if not spec.has_decoder:
        source, mask = as_batch(sources, spec)
        begun = time.perf_counter()
        model.backend.encode(source, mask)
        return {"encoder": [time.perf_counter() - begun]}
    prompt, capacity = np.full((size, 1), spec.start_token_id), new_tokens
    if not spec.has_encoder:
        prompt, sources = np.array(sources), [[]] * size
        capacity += source_length
    source, mask = as_batch(sources, spec)
    clock = [time.perf_counter()]
    state = model.backend.start(source, mask, prompt, capacity)
    if isinstance(state, DeviceState):
        state.wait()  # the encoder is only enqueued
    clock.append(time.perf_counter())
    for _ in range(new_tokens):
        state.step()
        clock.append(time.perf_counter())
    state.close()
    first, *steps = np.diff(clock).tolist()
    if isinstance(state, DeviceState):  # tokens of several steps are read together
        steps = [float(np.mean(steps))] * len(steps)
    if spec.has_encoder:
        return {"encoder": [first], "step": steps}
    return {"prompt": [first + steps[0]], "step": steps[1:]}


def measure_speed(
    bundles: Sequence[Bundle],
    *,
    threads: int | None,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> dict[Path, Speed | str]:
    """Return the speed of each bundle by its directory, or why it could not be measured.

    They are measured in turns, length by length, so that drift affects all alike. `advance` is
    called with the numbers of finished and of all processes.
    """
    lengths = [source_lengths(bundle.manifest.model) for bundle in bundles]
    rounds = [zip(bundles, of_turn, strict=True) for of_turn in zip_longest(*lengths, fillvalue=0)]
    turns = [(bundle, length) for turn in rounds for bundle, length in turn if length != 0]
    reports: dict[Path, list[BenchReport]] = {}
    failures: dict[Path, str] = {}
    for done, (bundle, length) in enumerate(turns, start=1):
        directory = bundle.directory
        if directory not in failures:
            try:
                report = _bench_apart(directory, threads, length)
                reports.setdefault(directory, []).append(report)
            except DragomanError as error:
                failures[directory] = str(error)
        advance(done, len(turns))
    audio = {bundle.directory: bundle.manifest.model.takes_audio for bundle in bundles}
    return {
        directory: Speed(
            backend=found[0].backend,
            threads=threads,
            runs=RUNS,
            audio=audio[directory],
            load_seconds=median(report.load_seconds for report in found),
            peak_memory_mb=max(report.peak_memory_mb for report in found),
            timings=tuple(
                Timing(source_length=r.source_length, new_tokens=r.new_tokens, **vars(figures))
                for r in found
                for figures in r.batches
            ),
        )
        for directory, found in reports.items()
    } | failures


def _bench_apart(directory: Path, threads: int | None, length: int | None) -> BenchReport:
    """Measure a bundle by `dragoman bench` in a process of its own."""
    command = [sys.executable, "-m", "dragoman", "bench", str(directory.absolute())]
    command += [f"--runs={RUNS}"]
    command += [] if threads is None else [f"--threads={threads}"]
    command += [] if length is None else [f"--source-length={length}"]
    paths = os.pathsep.join(filter(None, sys.path))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        done = subprocess.run(
            [*command, "--json", str(file)],
            env=os.environ | {"PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode:
            said = " ".join(done.stderr.split()).removeprefix("Error: ")
            raise DragomanError(said or f"its process ended unexpectedly, status {done.returncode}")
        report = from_plain(BenchReport, json.loads(file.read_bytes()), "", Problems())
    assert report is not None
    return report


def source_lengths(model: ModelSpec) -> list[int | None]:
    """Return the source lengths to measure; None for a speech model, whose window is fixed."""
    if model.takes_audio:
        return [None]
    most = _longest_source(model, NEW_TOKENS)
    return [*dict.fromkeys(min(length, most) for length in LENGTHS)]
