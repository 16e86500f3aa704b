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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...models.bundles import Calibration
from ...models.shapes import SHAPES, describe
from ...peers import openvino
from ...peers.ctranslate2_runtime import CTranslate2Peer
from ...peers.interface import Rows
from ...processes import HERE, Interpreter, ProcessError
from ..record import Record, Table, distinct, table_of
from ..rounds import Contender, Entrant, Rounds, Spread, Turn, Worker, against, spread
from ..task import BEFORE, ONLY, OPENVINO, ROUNDS, SHAPE, VOCAB_SIZE, Option, Run, Task
from .decoding import (
    CALIBRATION_SOURCES,
    LONGEST_OUTPUT,
    MEAN_OUTPUT,
    SOURCE_LENGTHS,
    draw_sources,
)
from .greedy import batch_sizes
from .text_contenders import BEFORE as BEFORE_SUFFIX
from .text_contenders import (
    ctranslate2_compute_types,
    dragoman_contenders,
    openvino_contenders,
    translator,
)


class Arrangement(NamedTuple):
    """The workers, threads and batch size of a tool.

    Attributes:
        workers: number of processes
        threads: threads per worker
        batch: maximum batch size of a worker
    """

    workers: int
    threads: int
    batch: int

    def __str__(self) -> str:
        return f"{self.workers} x {self.threads}, {self.batch} at once"


class Share(NamedTuple):
    """The share of one worker.

    Attributes:
        sources: token ids, without padding
        max_batch_size: maximum batch size
        max_new_tokens: maximum new tokens per source
    """

    sources: list[list[int]]
    max_batch_size: int
    max_new_tokens: int


Decode = Callable[[Share], Rows]
ThroughputContender = Contender[Share, Rows]


@dataclass(frozen=True)
class Trial:
    """The measurement of an arrangement.

    Attributes:
        tokens_per_second: new tokens, including end tokens, over the time until the last worker is
            done
    """

    arrangement: Arrangement
    tokens_per_second: float


@dataclass(frozen=True)
class Throughput:
    """A tool in its best arrangement.

    Attributes:
        tokens_per_second: spread over the rounds
        tokens: new tokens of all sentences, which differ slightly between tools due to rounding
        best_peer, ratio: best other tool, and this tool's median over its median; None: no peer
        best_fp32_peer, fp32_ratio: the same for peers in fp32; None unless this is in fp32
        memory_mb: peak memory of all workers together, in MB of 10^6 bytes
    """

    tool: str
    arrangement: Arrangement
    tokens_per_second: Spread
    tokens: int
    best_peer: str | None
    ratio: float | None
    best_fp32_peer: str | None
    fp32_ratio: float | None
    memory_mb: float
    trials: list[Trial]


def deal(sources: Sequence[list[int]], arrangement: Arrangement) -> list[Share]:
    """Deal sources of all lengths evenly to the workers, the longest first."""
    ordered = sorted(sources, key=len, reverse=True)
    return [
        Share(ordered[worker :: arrangement.workers], arrangement.batch, LONGEST_OUTPUT)
        for worker in range(arrangement.workers)
    ]


def arrangements(cores: int, batches: Sequence[int]) -> list[Arrangement]:
    """Return all cores with one worker, with two, four and so on, and one worker for each core."""
    workers = sorted({*(2**n for n in range(cores.bit_length()) if 2**n <= cores), cores})
    return [Arrangement(w, cores // w, batch) for w in workers for batch in batches]


def contenders(
    calibration: Calibration,
    openvino_in: Interpreter = HERE,
    before: Interpreter | None = None,
) -> list[ThroughputContender]:
    """Return tools with their usual call for many sentences, Dragoman first.

    Failures of missing tools are reported.

    Args:
        calibration: calibration sources of Dragoman's bundles
        openvino_in: interpreter with Optimum-Intel
        before: interpreter with another version of Dragoman, to compare with
    """
    ours = partial(dragoman_contenders, load_bundle, calibration=calibration)
    return [
        *ours(),
        *(ours(interpreter=before, suffix=BEFORE_SUFFIX) if before else []),
        *(translator(name, load_ctranslate2) for name in ctranslate2_compute_types()),
        *openvino_contenders(load_openvino, openvino_in),
    ]


def load_bundle(directory: Path, threads: int) -> Decode:
    """Load Dragoman's runtime, which uses continuous batching."""
    from dragoman.runtime import load

    model = load(directory, threads=threads)

    def decode(share: Share) -> Rows:
        results = model.generate(
            share.sources,
            max_new_tokens=share.max_new_tokens,
            max_batch_size=share.max_batch_size,
            max_batch_tokens=1 << 30,
        )
        return [list(result.tokens) for result in results]

    return decode


def load_ctranslate2(directory: Path, threads: int, *, compute_type: str) -> Decode:
    """Load CTranslate2, which itself forms batches of similar length."""
    peer = CTranslate2Peer.load(directory, threads, compute_type)
    return lambda share: peer.generate(
        share.sources, share.max_new_tokens, max_batch_size=share.max_batch_size
    )


def load_openvino(
    directory: Path, threads: int, *, mode: openvino.Mode, kind: openvino.Kind
) -> Decode:
    """Load OpenVINO, which decodes batches of similar length with Hugging Face's `generate`."""
    from ...peers.hugging_face import until_the_end

    decode = until_the_end(openvino.load_model(directory, threads, mode=mode, kind=kind))
    return lambda share: decode(share.sources, share.max_batch_size, share.max_new_tokens)


class Team(Worker[Any, int]):
    """All workers of a contender, with the interface of one worker.

    The outcome of a turn is the number of new tokens.

    Raises:
        ProcessError: a worker fails to load; the others are ended.
    """

    def __init__(
        self, contender: ThroughputContender, directory: Path, arrangement: Arrangement
    ) -> None:
        self.contender: Any = contender
        self.entrant = Entrant(contender.name, arrangement.threads)
        self.arrangement = arrangement
        self.load_seconds = self.disk_mb = 0.0
        self._workers: list[Worker[Share, Rows]] = []
        try:
            for _ in range(arrangement.workers):
                self._workers.append(Worker(contender, directory, arrangement.threads))
        except ProcessError:
            self.kill()
            raise

    def perform(self, work: Sequence[list[int]], turn_seconds: float = 0) -> Turn[int]:
        """Decode all sources, divided between the workers, until the last worker is done."""
        shares = deal(work, self.arrangement)
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

    def close(self) -> float:
        """End the processes; returns the sum of their peak memory in MB of 10^6 bytes."""
        return sum(worker.close() for worker in self._workers)

    def kill(self) -> None:
        """End the processes at once; may be called again."""
        for worker in self._workers:
            worker.kill()


def measure(
    run: Run,
    *,
    shape: str,
    vocab_size: int | None,
    sentences: int,
    cores: int | None,
    batch_sizes: tuple[int, ...],
    rounds: int,
) -> dict[str, Any]:
    """Measure all tools, each in its best arrangement."""
    from ...models.random_checkpoint import write_ending_text_model

    vocab_size = vocab_size or SHAPES[shape].vocab_size
    tokens = (1, vocab_size - 1)  # exclude end token and padding
    calibration = draw_sources(CALIBRATION_SOURCES, tokens, seed=99)
    chosen = run.chosen(contenders(calibration, run.openvino, run.before))
    write_ending_text_model(
        shape, run.directory / "checkpoint", vocab_size=vocab_size, mean_length=MEAN_OUTPUT
    )
    return {
        "shape": describe(shape, vocab_size),
        "sentences": sentences,
        "source_lengths": SOURCE_LENGTHS,
        "longest_output": LONGEST_OUTPUT,
        "rounds": rounds,
        **measure_throughput(
            run,
            chosen,
            draw_sources(sentences, tokens),
            arrangements(cores or os.cpu_count() or 1, batch_sizes),
            rounds=rounds,
        ),
    }


def measure_throughput(
    run: Run,
    contenders: Sequence[ThroughputContender],
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
    taking: Rounds[Any, Any] = Rounds(run.directory / "checkpoint", run.directory, run.progress)
    trials: dict[str, list[Trial]] = {}
    try:
        for contender in contenders:
            try:
                prepared = taking.prepare(contender)
                tried = _try_all(contender, prepared, sources, arrangements, run.progress)
                team = Team(contender, prepared, _best(tried))
            except ProcessError as error:
                taking.drop(contender, error)
                continue
            taking.workers.append(team)
            trials[contender.name] = tried
        turns = taking.turns("queue", sources, rounds)
        memory = {f.contender: f.peak_memory_mb for f in taking.close()}
    finally:
        taking.kill()
    results = {
        entrant.contender: Result(
            [turn.outcome / turn.seconds for turn in own[1:]],
            own[-1].outcome,
            memory[entrant.contender],
        )
        for entrant, own in turns.items()
        if entrant.contender in memory
    }
    working = [contender for contender in contenders if contender.name in results]
    return {
        "tools": [figures_of(c, results, trials[c.name], working) for c in working],
        "failures": taking.failures,
    }


class Result(NamedTuple):
    """The results of a tool over all rounds.

    Attributes:
        speeds: tokens per second of each counted round
        tokens, memory_mb: see `Throughput`
    """

    speeds: list[float]
    tokens: int
    memory_mb: float


def _try_all(
    contender: ThroughputContender,
    directory: Path,
    sources: Sequence[list[int]],
    arrangements: Sequence[Arrangement],
    progress: Callable[[str], None],
) -> list[Trial]:
    """Measure each arrangement once, after a warm-up with a part of the work."""
    trials = []
    for workers, threads in distinct(arrangement[:2] for arrangement in arrangements):
        team = Team(contender, directory, Arrangement(workers, threads, 1))
        try:
            for arrangement in arrangements:
                if arrangement[:2] != (workers, threads):
                    continue
                progress(f"{contender.name}: {arrangement}")
                team.arrangement = arrangement
                team.perform(sources[: 2 * workers])
                turn = team.perform(sources)
                trials.append(Trial(arrangement, round(turn.outcome / turn.seconds, 1)))
        finally:
            team.kill()
    return trials


def _best(trials: Sequence[Trial]) -> Arrangement:
    return max(trials, key=lambda trial: trial.tokens_per_second).arrangement


def figures_of(
    contender: ThroughputContender,
    results: Mapping[str, Result],
    trials: list[Trial],
    contenders: Sequence[ThroughputContender],
) -> Throughput:
    """Return the figures of one contender.

    Args:
        trials: trials of this contender
        contenders: all contenders with results
    """
    speeds, tokens, memory = results[contender.name]
    seconds = {name: 1 / float(np.median(result.speeds)) for name, result in results.items()}
    peers = {other.name: seconds[other.name] for other in contenders if other.peer}
    in_fp32 = {other.name: peers[other.name] for other in contenders if other.peer and other.fp32}
    best_peer, ratio = against(seconds[contender.name], peers)
    best_fp32_peer, fp32_ratio = against(
        seconds[contender.name], in_fp32 if contender.fp32 else None
    )
    return Throughput(
        tool=contender.name,
        arrangement=_best(trials),
        tokens_per_second=spread(speeds),
        tokens=tokens,
        best_peer=best_peer,
        ratio=ratio,
        best_fp32_peer=best_fp32_peer,
        fp32_ratio=fp32_ratio,
        memory_mb=round(memory, 1),
        trials=trials,
    )


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


CORES = Option("--cores", "Cores to arrange [default: all].", int)

THROUGHPUT = Task(
    name="throughput",
    help="Compare how many tokens a second tools give with a queue of sentences to work off.",
    options=(
        SHAPE,
        VOCAB_SIZE,
        Option("--sentences", "Sentences in the queue.", int, 500),
        CORES,
        batch_sizes(
            16,
            32,
            64,
            what="The most sentences that a worker decodes together; every tool tries each;",
        ),
        ROUNDS,
        ONLY,
        OPENVINO,
        BEFORE,
    ),
    measure=measure,
    rows="tools",
    file=lambda record, options: (
        f"throughput-{options['shape']}-{options['cores'] or os.cpu_count()}-cores"
    ),
    tables=tables,
    notes=notes,
)
