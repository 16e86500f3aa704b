"""Finds the fastest arrangement of workers and threads for a server on this machine.

Requests have different lengths and outnumber the rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dragoman.errors import DragomanError
from dragoman.optimize.step_inputs import random_sources
from dragoman.runtime import GenerationOptions, load, read_bundle
from dragoman.runtime.backends import check_backend
from dragoman.runtime.decoding.results import Result
from dragoman.runtime.format.manifest import Manifest
from dragoman.runtime.serving.arrangement import Arrangement, usable_cores
from dragoman.runtime.serving.engine.encoder_engine import (
    AnyEngine,
    EncoderEngine,
    EncoderHandle,
    open_engine,
)
from dragoman.runtime.serving.engine.engine import DecodingEngine, threads_of

ROWS = (16, 32, 64)
LENGTHS = (5, 60)
"""Lengths of sources and of outputs in tokens, as far as the model has positions."""
SEED = 23
ROUNDS = 3


class Tried(NamedTuple):
    """The measurement of an arrangement."""

    arrangement: Arrangement
    per_second: float
    """Median over rounds of new tokens, or texts of an encoder-only model, per second."""


def arrangements(cores: int, rows: Sequence[int] = ROWS) -> list[Arrangement]:
    """Return all cores with one worker, with two, four and so on, and a worker for each core."""
    workers = sorted({*(2**n for n in range(cores.bit_length()) if 2**n <= cores), cores})
    return [Arrangement(n, cores // n, most) for n in workers for most in rows]


def arrangements_on_gpu(most: int) -> list[Arrangement]:
    """Return one worker and two, with all rows that fit into a GPU's memory, half, a quarter."""
    rows = sorted({max(1, most // part) for part in (1, 2, 4)})
    return [Arrangement(n, 1, each) for n in (1, 2) for each in rows if n * each <= max(n, most)]


def try_arrangements(
    directory: Path,
    *,
    requests: int = 200,
    backend: str | None = None,
    device: str | None = None,
    progress: Callable[[str], None] = lambda stage: None,
) -> list[Tried]:
    """Measure each arrangement of the cores that this process may use, or of a GPU; best first.

    On a GPU, there are at least twice as many requests as rows.
    """
    bundle = read_bundle(directory)
    manifest = bundle.manifest
    if manifest.audio is not None:
        raise DragomanError(
            "arrangement: expected a model of texts, found one of speech: give serve --workers and "
            "--threads"
        )

    def opened(one: Arrangement) -> AnyEngine:
        threads = threads_of(one.workers, one.threads)
        model = load(bundle, threads=threads, backend=backend, device=device, check="never")
        return open_engine(
            model, workers=one.workers, batch_size=one.batch_size, max_waiting=requests
        )

    if check_backend(bundle, backend, device).device == "cuda":
        engine = opened(Arrangement(1, 1, None))
        most = engine.batch_size
        engine.close()
        requests, candidates = max(requests, 2 * most), arrangements_on_gpu(most)
    else:
        candidates = arrangements(usable_cores())
    tried = []
    for one in candidates:
        progress(str(one))
        engine = opened(one)
        try:
            if isinstance(engine, DecodingEngine):
                work = _decoding(engine, manifest, requests)
            else:
                work = _encoding(engine, manifest, requests)
            work()  # warms up
            speeds = []
            for _ in range(ROUNDS):
                started = time.perf_counter()
                speeds.append(work() / (time.perf_counter() - started))
            tried.append(Tried(one, float(np.median(speeds))))
        finally:
            engine.close()
    return sorted(tried, key=lambda each: -each.per_second)


def _decoding(engine: DecodingEngine, manifest: Manifest, requests: int) -> Callable[[], int]:
    generator = np.random.default_rng(SEED)
    model = manifest.model
    positions = model.input_positions
    most = min(LENGTHS[1], engine.max_new_tokens, model.max_target_positions)
    if not model.has_encoder:
        positions, most = positions // 2, min(most, positions // 2)
    sources = random_sources(manifest, _lengths(generator, requests, positions), generator)
    limits = _lengths(generator, requests, most)

    def work() -> int:
        handles = []
        for source, limit in zip(sources, limits, strict=True):
            options = GenerationOptions(max_new_tokens=limit, num_beams=1, do_sample=False)
            handle = engine.prepare(source, options)
            if isinstance(handle, Result):
                raise DragomanError(f"arrangement: {handle.error}")
            handles.append(handle)
        for handle in handles:
            engine.submit(handle)
        return sum(max(1, len(handle.future.result().tokens)) for handle in handles)

    return work


def _encoding(engine: EncoderEngine, manifest: Manifest, requests: int) -> Callable[[], int]:
    generator = np.random.default_rng(SEED)
    lengths = _lengths(generator, requests, manifest.model.max_source_positions)
    sources = random_sources(manifest, lengths, generator)

    def work() -> int:
        uncut = {"truncate": False}
        handles = [EncoderHandle("hidden_states", [source], uncut) for source in sources]
        for handle in handles:
            engine.submit(handle)
        return len([handle.future.result() for handle in handles])

    return work


def _lengths(generator: np.random.Generator, count: int, most: int) -> list[int]:
    longest = min(LENGTHS[1], most)
    lengths: list[int] = generator.integers(min(LENGTHS[0], longest), longest + 1, count).tolist()
    return lengths
