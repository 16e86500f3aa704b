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
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from ...models.shapes import SHAPES, describe
from ...peers.interface import Rows
from ...processes import ProcessError
from .. import options
from ..contenders import queue, text
from ..contenders.queue import Arrangement, QueueContender
from ..contenders.variants import with_shortlists
from ..record import Record, Row, Table, distinct, table_of
from ..rounds import Contender, Entrant, Footprint, Turn, Worker, against, spread
from ..task import Options, Run, Task


class Team(Worker[Any, int]):
    """All workers of a contender, with the interface of one worker.

    The outcome of a turn is the number of new tokens.

    Raises:
        ProcessError: a worker fails to load; the others are ended.
    """

    def __init__(
        self, contender: QueueContender, directory: Path, arrangement: Arrangement
    ) -> None:
        self.contender: Any = contender
        self.entrant = Entrant(contender.name, arrangement.threads)
        self.arrangement = arrangement
        self._workers: list[Worker[queue.Share, Rows]] = []
        try:
            for _ in range(arrangement.workers):
                self._workers.append(Worker(contender, directory, arrangement.threads))
        except ProcessError:
            self.kill()
            raise

    def perform(self, work: Sequence[list[int]], turn_seconds: float = 0) -> Turn[int]:
        """Decode all sources, divided between the workers, until the last worker is done."""
        shares = queue.deal(work, self.arrangement)
        with ThreadPoolExecutor(len(self._workers)) as pool:
            started = time.perf_counter()
            turns = list(
                pool.map(lambda worker, share: worker.perform(share), self._workers, shares)
            )
            seconds = time.perf_counter() - started
        for share, turn in zip(shares, turns, strict=True):
            if len(turn.outcome) != len(share.sources):
                raise ProcessError(
                    f"decoding: expected {len(share.sources)} rows, found {len(turn.outcome)}"
                )
        longest = shares[0].max_new_tokens
        rows = [row for turn in turns for row in turn.outcome]
        return Turn(sum(min(len(row) + 1, longest) for row in rows), seconds)

    def close(self) -> Footprint:
        """End the processes; the peak memory is the sum of theirs."""
        closed = [worker.close() for worker in self._workers]
        return replace(closed[0], peak_memory_mb=sum(each.peak_memory_mb for each in closed))

    def kill(self) -> None:
        """End the processes at once; may be called again."""
        for worker in self._workers:
            worker.kill()


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
    write_ending_text_model(
        given.shape, run.checkpoint, vocab_size=vocab_size, mean_length=text.MEAN_OUTPUT
    )
    sources = text.draw_sources(given.sentences, tokens)
    tried = queue.arrangements(given.cores or os.cpu_count() or 1, given.batch_sizes)
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
    arrangements: Sequence[Arrangement],
    *,
    rounds: int,
) -> dict[str, Any]:
    """Measure contenders: `tools`, `failures`.

    Args:
        arrangements: arrangements to try once; each contender then uses its fastest
        rounds: number of counted rounds, after one warm-up round
    """
    trials: dict[str, list[Row]] = {}

    def start(contender: QueueContender, directory: Path, threads: int) -> Team:
        tried = list(_try_all(run, contender, directory, sources, arrangements))
        trials[contender.name] = tried
        return Team(contender, directory, _best(tried))

    results = run.take_turns(
        contenders, {"queue": sources}, threads=[1], rounds=rounds, start=start
    )
    memory = {footprint.contender: footprint.peak_memory_mb for footprint in results.footprints}
    speeds = {
        entrant.contender: [turn.outcome / turn.seconds for turn in turns.counted]
        for entrant, turns in results.turns["queue"].items()
    }
    tokens = {e.contender: turns.outcome for e, turns in results.turns["queue"].items()}
    ratios = ratios_of(speeds, contenders)
    return {
        "tools": [
            {
                "tool": name,
                "arrangement": _best(trials[name]),
                "tokens_per_second": spread(of_rounds),
                "tokens": tokens[name],
                **ratios[name],
                "memory_mb": round(memory[name], 1),
                "trials": trials[name],
            }
            for name, of_rounds in speeds.items()
        ],
        "failures": results.failures,
    }


def _try_all(
    run: Run,
    contender: QueueContender,
    directory: Path,
    sources: Sequence[list[int]],
    arrangements: Sequence[Arrangement],
) -> Iterator[Row]:
    """Measure tokens per second, with end tokens, after a warm-up with a part of the work."""
    for workers, threads in distinct(arrangement[:2] for arrangement in arrangements):
        team = Team(contender, directory, Arrangement(workers, threads, 1))
        try:
            for arrangement in arrangements:
                if arrangement[:2] != (workers, threads):
                    continue
                run.progress(f"{contender.name}: {arrangement}")
                team.arrangement = arrangement
                team.perform(sources[: 2 * workers])
                turn = team.perform(sources)
                speed = round(turn.outcome / turn.seconds, 1)
                yield {"arrangement": arrangement, "tokens_per_second": speed}
        finally:
            team.kill()


def _best(trials: Sequence[Row]) -> Arrangement:
    best: Arrangement = max(trials, key=itemgetter("tokens_per_second"))["arrangement"]
    return best


def ratios_of(
    speeds: Mapping[str, Sequence[float]], contenders: Sequence[QueueContender]
) -> dict[str, Row]:
    """Return the figures of `against` peers, and against those in fp32, by contender.

    Args:
        speeds: tokens per second of each round of the contenders that work
    """
    working = [contender for contender in contenders if contender.name in speeds]
    seconds = {name: 1 / float(np.median(of_rounds)) for name, of_rounds in speeds.items()}
    peers = {c.name: seconds[c.name] for c in working if c.peer}
    in_fp32 = {c.name: seconds[c.name] for c in working if c.peer and c.fp32}
    return {
        c.name: against(seconds[c.name], peers)
        | against(seconds[c.name], in_fp32 if c.fp32 else {}, "fp32")
        for c in working
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
    for best in distinct(tool["best_peer"] for tool in record["tools"]):
        if best is not None:
            yield f"best peer: {best}"


THROUGHPUT = Task(
    name="throughput",
    help="Compare how many tokens a second tools give with a queue of sentences to work off.",
    options=(
        options.SHAPE,
        options.VOCAB_SIZE,
        options.option("--sentences", "Sentences in the queue.", 500),
        options.SHORTLIST,
        options.CORES,
        options.batch_sizes(
            *(16, 32, 64),
            what="The most sentences that a worker decodes together; every tool tries each;",
        ),
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
