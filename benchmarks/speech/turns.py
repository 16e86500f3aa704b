"""Contenders, each in a process of its own, take turns at the same clips."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from dragoman.errors import DragomanError

from .contenders import Contender, Load, Stages

SETTLE_SECONDS = 0.3
"""Between turns: some thread pools go on spinning for a while after their work."""


@dataclass
class Timings:
    """Of one contender.

    Attributes:
        totals: seconds for all clips, of each round
        stages: of all clips together, of each round
        texts: by clip
    """

    totals: list[float] = field(default_factory=list)
    stages: list[Stages] = field(default_factory=list)
    texts: dict[Path, str] = field(default_factory=dict)


def take_turns(
    contenders: Sequence[Contender],
    directories: Mapping[str, Path],
    clips: Sequence[Path],
    *,
    threads: int,
    rounds: int,
    progress: Callable[[str], None] = lambda stage: None,
) -> tuple[dict[str, Timings], dict[str, str]]:
    """Timings by contender, and of those that failed why.

    Args:
        directories: what each loads
        rounds: counted ones; one more before is not
    """
    context = multiprocessing.get_context("spawn")
    timings: dict[str, Timings] = {}
    failures: dict[str, str] = {}
    workers = {}
    for contender in contenders:
        progress(f"loading {contender.name}")
        here, there = context.Pipe()
        process = context.Process(
            target=_serve,
            args=(there, contender.load, directories[contender.name], threads),
            daemon=True,
        )
        process.start()
        there.close()
        workers[contender.name] = (here, process)
        timings[contender.name] = Timings()
    try:
        for number in range(rounds + 1):
            for name, (connection, _) in workers.items():
                if name in failures:
                    continue
                progress(f"round {number} of {rounds}: {name}")
                time.sleep(SETTLE_SECONDS)
                try:
                    connection.send(list(clips))
                    good, value = connection.recv()
                except (EOFError, OSError):
                    good, value = False, "its process ended unexpectedly"
                if not good:
                    failures[name] = value
                elif number > 0:
                    total, stages, texts = value
                    timings[name].totals.append(total)
                    timings[name].stages.append(stages)
                    timings[name].texts = texts
    finally:
        for _, process in workers.values():
            process.kill()
            process.join()
    return {name: t for name, t in timings.items() if name not in failures}, failures


def _serve(connection: Connection, load: Load, directory: Path, threads: int) -> None:
    sys.modules["torch"] = None  # type: ignore[assignment] # as deployed
    try:
        transcriber = load(directory, threads)
        while True:
            clips = connection.recv()
            texts, total = {}, 0.0
            for clip in clips:
                started = time.perf_counter()
                texts[clip] = transcriber.transcribe(clip)
                total += time.perf_counter() - started
            each = [transcriber.stages(clip) for clip in clips]
            stages = Stages(
                sum(s.encoder for s in each),
                sum(s.decoder for s in each),
                sum(s.tokens for s in each),
            )
            connection.send((True, (total, stages, texts)))
    except EOFError:
        return
    except Exception as error:
        message = " ".join(str(error).split())[:300]
        kind = "" if isinstance(error, DragomanError) else f"{type(error).__name__}: "
        connection.send((False, kind + message))
