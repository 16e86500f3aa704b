"""Finds the fastest arrangement of workers and threads for a server on this machine.

Requests have different lengths and outnumber the rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.errors import DragomanError
from dragoman.runtime import GenerationOptions, load, read_bundle
from dragoman.runtime.decoding.results import Result
from dragoman.runtime.format.manifest import Manifest
from dragoman.runtime.serving.arrangement import Arrangement, usable_cores
from dragoman.runtime.serving.engine.encoder_engine import EncoderEngine, EncoderHandle
from dragoman.runtime.serving.engine.engine import DecodingEngine, threads_of

ROWS = (16, 32, 64)
LENGTHS = (5, 60)
"""Lengths of sources and of outputs in tokens, as far as the model has positions."""
SEED = 23
ROUNDS = 3


@dataclass(frozen=True)
class Tried:
    """The measurement of an arrangement.

    Attributes:
        per_second: median over rounds of new tokens, or texts of an encoder-only model, per second
    """

    arrangement: Arrangement
    per_second: float


def arrangements(cores: int, rows: Sequence[int] = ROWS) -> list[Arrangement]:
    """Return all cores with one worker, with two, four and so on, and a worker for each core."""
    workers = sorted({*(2**n for n in range(cores.bit_length()) if 2**n <= cores), cores})
    return [Arrangement(n, cores // n, most) for n in workers for most in rows]


def try_arrangements(
    directory: Path,
    *,
    requests: int = 200,
    backend: str | None = None,
    progress: Callable[[str], None] = lambda stage: None,
) -> list[Tried]:
    """Measure each arrangement of the cores that this process may use, the best first.

    Raises:
        DragomanError: the bundle cannot be loaded, or does not take tokens.
    """
    manifest = read_bundle(directory).manifest
    if manifest.audio is not None:
        raise DragomanError(
            "arrangement: expected a model of texts, found one of speech: give serve --workers and "
            "--threads"
        )
    tried = []
    for one in arrangements(usable_cores()):
        progress(str(one))
        model = load(directory, threads=threads_of(one.workers, one.threads), backend=backend)
        if manifest.head is None:
            engine: Any = DecodingEngine(
                model, workers=one.workers, batch_size=one.batch_size, max_waiting=requests
            )
            work = _decoding(engine, manifest, requests)
        else:
            engine = EncoderEngine(
                model, workers=one.workers, batch_size=one.batch_size, max_waiting=requests
            )
            work = _encoding(engine, manifest, requests)
        try:
            work()  # warms up
            tried.append(Tried(one, float(np.median([_timed(work) for _ in range(ROUNDS)]))))
        finally:
            engine.close()
    return sorted(tried, key=lambda each: -each.per_second)


def _timed(work: Callable[[], int]) -> float:
    started = time.perf_counter()
    count = work()
    return count / (time.perf_counter() - started)


def _decoding(engine: DecodingEngine, manifest: Manifest, requests: int) -> Callable[[], int]:
    """Return a function that decodes all requests and returns the number of new tokens."""
    generator = np.random.default_rng(SEED)
    model = manifest.model
    positions = model.input_positions
    most = min(LENGTHS[1], engine.max_new_tokens, model.max_target_positions)
    if not model.has_encoder:
        positions, most = positions // 2, min(most, positions // 2)
    sources = _sources(generator, requests, positions, model.input_vocab_size)
    limits = generator.integers(min(LENGTHS[0], most), most + 1, requests).tolist()

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
    """Return a function that encodes all texts and returns their number."""
    generator, model = np.random.default_rng(SEED), manifest.model
    vocabulary = model.source_vocab_size or 0
    sources = _sources(generator, requests, model.max_source_positions, vocabulary)

    def work() -> int:
        handles = [
            EncoderHandle("hidden_states", [source], {"truncate": False}) for source in sources
        ]
        for handle in handles:
            engine.submit(handle)
        for handle in handles:
            handle.future.result()
        return len(handles)

    return work


def _sources(
    generator: np.random.Generator, count: int, positions: int, vocabulary: int
) -> list[list[int]]:
    longest = min(LENGTHS[1], positions)
    lengths = generator.integers(min(LENGTHS[0], longest), longest + 1, count).tolist()
    return [generator.integers(0, vocabulary, length).tolist() for length in lengths]
