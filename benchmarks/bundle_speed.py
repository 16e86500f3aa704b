"""Measures speed, load time and memory of bundles in separate processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from dragoman.runtime import Bundle
from dragoman.runtime.format.model_spec import ModelSpec
from dragoman.verification.report.contents import Speed, Timing

from .latency import NEW_TOKENS, BenchReport, bench
from .processes import HERE, ProcessError, call_in

LENGTHS = (8, 32, 128)
"""Tokens of the sources that are measured, as far as the model has positions."""
RUNS = 3

Measured = dict[Path, Speed | str]
"""The speed of each bundle by its directory, or why it could not be measured."""


def measure_speed(
    bundles: Sequence[Bundle],
    *,
    threads: int | None,
    runs: int = RUNS,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> Measured:
    """Measure bundles in turns, length by length, so that drift affects all alike.

    Args:
        threads: processor threads; None: all cores
        runs: batches per size
        advance: called with the numbers of finished and of all processes
    """
    turns = [
        (bundle, lengths[turn])
        for turn in range(len(LENGTHS))
        for bundle in bundles
        for lengths in [source_lengths(bundle.manifest.model)]
        if turn < len(lengths)
    ]
    reports: dict[Path, list[BenchReport]] = {}
    failures: dict[Path, str] = {}
    for done, (bundle, length) in enumerate(turns, start=1):
        directory = bundle.directory
        if directory not in failures:
            try:
                measure = partial(bench, backend=None, threads=threads, runs=runs, command="")
                measure = partial(measure, source_length=length)
                report = call_in(HERE, measure, directory.absolute())
                reports.setdefault(directory, []).append(report)
            except ProcessError as error:
                failures[directory] = str(error)
        advance(done, len(turns))
    audio = {bundle.directory: bundle.manifest.model.takes_audio for bundle in bundles}
    return {d: _speed(found, audio[d]) for d, found in reports.items()} | failures


def source_lengths(model: ModelSpec) -> list[int | None]:
    """Return the source lengths to measure; None for a speech model, whose window is fixed."""
    if model.takes_audio:
        return [None]
    most = model.input_positions
    if not model.has_encoder:  # prompt and new tokens share them
        most -= min(NEW_TOKENS, most - 1)
    return [*dict.fromkeys(min(length, most) for length in LENGTHS)]


def _speed(reports: Sequence[BenchReport], audio: bool) -> Speed:
    first = reports[0]
    return Speed(
        backend=first.backend,
        threads=first.threads,
        runs=first.runs,
        audio=audio,
        load_seconds=median(report.load_seconds for report in reports),
        peak_memory_mb=max(report.peak_memory_mb for report in reports),
        timings=tuple(
            Timing(
                source_length=report.source_length, new_tokens=report.new_tokens, **vars(figures)
            )
            for report in reports
            for figures in report.batches
        ),
    )
