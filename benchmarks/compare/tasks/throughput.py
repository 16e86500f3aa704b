"""Compares the throughput of a whole machine on a queue of sentences of unequal length.

Every tool first tries all arrangements of cores into workers and threads, with several batch sizes;
then the tools take turns, each in its fastest arrangement. Sentences of all lengths are dealt to
each worker beforehand. The seeded random weights select the end token at one step in 32, so outputs
have unequal lengths, which are nearly the same for all tools. Dragoman's int8 and int4 are
calibrated on other sentences of the same kind.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.runtime.serving.arrangement import Arrangement

from ...arrangement import arrangements
from ...models.shapes import SHAPES, describe
from ...peers.interface import Rows
from ...processes import ProcessError
from .. import options
from ..contenders import queue, text
from ..contenders.queue import QueueContender, Share
from ..contenders.variants import with_shortlists
from ..record import Record, Row, Table, distinct, table_of
from ..rounds import Contender, Entrant, Footprint, Turn, Worker, against, spread
from ..task import Options, Run, Task


class Team(Worker[Any, int]):
    """All workers of a contender, with the interface of one worker.

    The outcome of a turn is the number of new tokens.
    """

    def __init__(self, contender: QueueContender, directory: Path, own: Arrangement) -> None:
        self.contender: Any = contender
        self.entrant, self.arrangement = Entrant(contender.name, own.threads), own
        self._workers: list[Worker[Share, Rows]] = []
        try:
            for _ in range(own.workers):
                self._workers.append(Worker(contender, directory, own.threads))
        except ProcessError:
            self.kill()
            raise

    def perform(self, work: Sequence[list[int]], turn_seconds: float = 0) -> Turn[int]:
        """Decode all sources, divided between the workers, until the last worker is done."""
        shares = deal(work, self.arrangement)
        with ThreadPoolExecutor(len(self._workers)) as pool:
            started = time.perf_counter()
            turns = list(pool.map(Worker.perform, self._workers, shares))
            seconds = time.perf_counter() - started
        tokens, longest = 0, shares[0].max_new_tokens
        for share, turn in zip(shares, turns, strict=True):
            expected, found = len(share.sources), len(turn.outcome)
            if found != expected:
                raise ProcessError(f"decoding: expected {expected} rows, found {found}")
            tokens += sum(min(len(row) + 1, longest) for row in turn.outcome)
        return Turn(tokens, seconds)

    def close(self) -> Footprint:
        """End the processes; the peak memory is the sum of theirs."""
        closed = [worker.close() for worker in self._workers]
        return replace(closed[0], peak_memory_mb=sum(each.peak_memory_mb for each in closed))

    def kill(self) -> None:
        """End the processes at once; may be called again."""
        for worker in self._workers:
            worker.kill()


def deal(sources: Sequence[list[int]], arrangement: Arrangement) -> list[Share]:
    """Deal sources of all lengths evenly to the workers, the longest first."""
    ordered, most = sorted(sources, key=len, reverse=True), arrangement.batch_size or len(sources)
    shares = (ordered[worker :: arrangement.workers] for worker in range(arrangement.workers))
    return [Share(share, most, text.LONGEST_OUTPUT) for share in shares]


def measure(run: Run, given: Options) -> dict[str, Any]:
    """Measure all tools, each in its best arrangement."""
    from ...models.random_checkpoint import write_ending_text_model

    vocab_size = given.vocab_size or SHAPES[given.shape].vocab_size
    tokens = (1, vocab_size - 1)  # exclude end token and padding
    calibration = text.draw_sources(text.CALIBRATION_SOURCES, tokens, seed=99)
    contenders = queue.contenders(calibration, run.openvino, run.before)
    if given.shortlist:
        contenders = with_shortlists(contenders, text.MEAN_OUTPUT)
    chosen = run.chosen(contenders)
    sizes = {"vocab_size": vocab_size, "mean_length": text.MEAN_OUTPUT}
    write_ending_text_model(given.shape, run.checkpoint, **sizes)
    sources = text.draw_sources(given.sentences, tokens)
    tried = arrangements(given.cores or os.cpu_count() or 1, given.batch_sizes)
    return {
        "shape": describe(given.shape, vocab_size),
        "sentences": given.sentences,
        "source_lengths": text.SOURCE_LENGTHS,
        "longest_output": text.LONGEST_OUTPUT,
        "rounds": given.rounds,
        **measure_throughput(run, chosen, sources, tried, rounds=given.rounds),
    }


def measure_throughput(
    run: Run,
    contenders: Sequence[Contender[Any, Any]],  # those of `Team` have other work and outcomes
    sources: Sequence[list[int]],
    tried: Sequence[Arrangement],
    *,
    rounds: int,
) -> dict[str, Any]:
    """Measure contenders, each in the fastest of the arrangements: `tools`, `failures`."""
    trials: dict[str, list[Row]] = {}
    best: dict[str, Arrangement] = {}

    def start(contender: QueueContender, directory: Path, threads: int) -> Team:
        """Try all arrangements, each after a warm-up with a part of the work."""
        found = trials[contender.name] = []
        for (workers, _), several in groupby(tried, key=itemgetter(0, 1)):
            first, *others = several
            team = Team(contender, directory, first)
            try:
                for arrangement in (first, *others):
                    run.progress(f"{contender.name}: {arrangement}")
                    team.arrangement = arrangement
                    team.perform(sources[: 2 * workers])
                    turn = team.perform(sources)
                    speed = round(turn.outcome / turn.seconds, 1)
                    found.append({"arrangement": arrangement, "tokens_per_second": speed})
            finally:
                team.kill()
        fastest = max(found, key=itemgetter("tokens_per_second"))
        best[contender.name] = fastest["arrangement"]
        return Team(contender, directory, fastest["arrangement"])

    work = {"queue": sources}
    results = run.take_turns(contenders, work, threads=[1], rounds=rounds, start=start)
    memory = {footprint.contender: footprint.peak_memory_mb for footprint in results.footprints}
    turns = {entrant.contender: own for entrant, own in results.turns["queue"].items()}
    speeds = {name: [t.outcome / t.seconds for t in own.counted] for name, own in turns.items()}
    ratios = ratios_of(speeds, contenders)
    tools = [
        {
            "tool": name,
            "arrangement": best[name],
            "tokens_per_second": spread(speeds[name]),
            "tokens": own.outcome,
            **ratios[name],
            "memory_mb": round(memory[name], 1),
            "trials": trials[name],
        }
        for name, own in turns.items()
    ]
    return {"tools": tools, "failures": results.failures}


def ratios_of(
    speeds: Mapping[str, Sequence[float]], contenders: Sequence[QueueContender]
) -> dict[str, Row]:
    """Return the figures of `against` peers, and against those in fp32, by contender.

    `speeds` are the tokens per second of each round of the contenders that work.
    """
    working = {c: 1 / float(np.median(speeds[c.name])) for c in contenders if c.name in speeds}
    peers = {c.name: seconds for c, seconds in working.items() if c.peer}
    in_fp32 = {c.name: seconds for c, seconds in working.items() if c.peer and c.fp32}
    return {
        c.name: against(seconds, peers) | against(seconds, in_fp32 if c.fp32 else {}, "fp32")
        for c, seconds in working.items()
    }


COLUMNS = (
    ("", "{tool}"),
    ("workers x threads", "{arrangement[0]} x {arrangement[1]}, {arrangement[2]} at once"),
    (
        "tokens/s",
        "{tokens_per_second[0]:,.0f} ({tokens_per_second[1]:,.0f} - {tokens_per_second[2]:,.0f})",
    ),
    ("x best peer", "{ratio:.2f}"),
    ("x in fp32", "{fp32_ratio:.2f}"),
    ("tokens", "{tokens:,}"),
    ("memory, MB", "{memory_mb:,.0f}"),
)


def tables(record: Record) -> Iterator[Table]:
    """Yield a row for each tool."""
    title = (
        "{shape}; {sentences} sentences of {source_lengths[0]} to {source_lengths[1]} tokens, "
        "outputs of at most {longest_output}; {rounds} rounds"
    )
    yield table_of(record["tools"], COLUMNS, title=title.format_map(record))


def notes(record: Record) -> Iterator[str]:
    """Yield the best peer."""
    best = distinct(tool["best_peer"] for tool in record["tools"])
    yield from (f"best peer: {name}" for name in best if name is not None)


BATCHES = "The most sentences that a worker decodes together; every tool tries each;"

THROUGHPUT = Task(
    name="throughput",
    help="Compare how many tokens a second tools give with a queue of sentences to work off.",
    options=(
        options.SHAPE,
        options.VOCAB_SIZE,
        options.option("--sentences", "Sentences in the queue.", 500),
        options.SHORTLIST,
        options.CORES,
        options.batch_sizes(16, 32, 64, what=BATCHES),
        options.rounds(),
        options.ONLY,
        options.OPENVINO,
        options.BEFORE,
    ),
    measure=measure,
    rows="tools",
    file=lambda record, options: (
        f"throughput-{options['shape']}{options['shortlist'] * '-shortlist'}"
        f"-{options['cores'] or os.cpu_count()}-cores"
    ),
    tables=tables,
    notes=notes,
)
