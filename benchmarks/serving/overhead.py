"""What HTTP and the queue add to a request that is alone: beside the same calls of the library."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..harness import HERE, call_in
from ..throughput.work import Arrangement
from .load import send_one_by_one
from .served import ServedTool, running

ROUNDS = 3


def overhead_ms(
    tool: ServedTool, directory: Path, bodies: Sequence[dict[str, Any]], cores: int
) -> float:
    """The median of the differences, source by source, in milliseconds; each the least of some
    rounds, which take turns.

    Args:
        bodies: of texts
    """
    with running(tool.command(directory, Arrangement(1, cores, 64))) as (url, _):
        served, called = [], []
        for _ in range(ROUNDS):
            answers = call_in(HERE, send_one_by_one, url, bodies)
            served.append([answer.seconds for answer in answers])
            called.append(call_in(HERE, call_library, directory, cores, bodies))
    differences = np.min(served, axis=0) - np.min(called, axis=0)
    return round(float(np.median(differences)) * 1000, 3)


def call_library(directory: Path, threads: int, bodies: Sequence[dict[str, Any]]) -> list[float]:
    """Seconds of each call, in this process."""
    from dragoman.runtime import load

    model, seconds = load(directory, threads=threads), []
    for number, body in enumerate([*bodies[:2], *bodies]):  # the first two warm up
        source, longest = body["source"], body["max_new_tokens"]
        started = time.perf_counter()
        model.generate([source], max_new_tokens=longest)
        if number >= 2:
            seconds.append(time.perf_counter() - started)
    return seconds
