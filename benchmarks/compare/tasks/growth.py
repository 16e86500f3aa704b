"""Compares the growth of latency and tokens per second with batch size and source length.

One series varies the batch size with sources of 32 tokens; the other varies the source length at
one batch size. Every contender decodes the same number of new tokens greedily; the time includes
the encoder. The weights are seeded random numbers in the shape of published models. Dragoman's int8
and int4 are calibrated on other sources of these lengths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...models.bundles import Calibration
from ...models.shapes import SHAPES, check_lengths, describe
from ...peers.interface import Batch
from ...processes import HERE, Interpreter
from ..record import Record, Row, Table, distinct, sections, table_of
from ..rounds import Entrant, Spread, count, spread, take_turns
from ..task import ONLY, OPENVINO, ROUNDS, SHAPE, VOCAB_SIZE, Option, Run, Task
from .decoding import check_lengths as check_rows
from .greedy import batch_sizes, new_tokens
from .text_contenders import TextContender, translators

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE_LENGTH = 32
"""As the batch grows."""
TURN_SECONDS = 0.5
"""A batch is decoded again until that has taken so long."""
CALIBRATION_SOURCES = 16
"""Of each length."""

NAMES = (
    *("Dragoman fp32", "Dragoman int8", "Dragoman int4"),
    *("CTranslate2 float32", "CTranslate2 int8", "OpenVINO int8"),
)
"""Dragoman's precisions and its nearest rivals: a picture of all tools could not be read."""
MARKERS = ("o", "s", "^", "D", "v", "X")
"""One for each contender, by which they differ without colours, too."""


class Point(NamedTuple):
    """The sizes of a batch.

    Attributes:
        batch_size: number of sources
        source_length: tokens per source
    """

    batch_size: int
    source_length: int

    def __str__(self) -> str:
        return f"batch {self.batch_size}, source {self.source_length}"


@dataclass(frozen=True)
class Workload:
    """Two series of points, over batch size and over source length.

    Attributes:
        batch_sizes: batch sizes, with sources of `source_length`
        source_lengths: source lengths, with `source_batch` sources
        new_tokens: tokens that every row generates
        tokens: source tokens are drawn from range(*tokens)
    """

    batch_sizes: tuple[int, ...]
    source_length: int
    source_lengths: tuple[int, ...]
    source_batch: int
    new_tokens: int
    tokens: tuple[int, int]

    @property
    def by_batch(self) -> list[Point]:
        """The points of growing batches."""
        return [Point(size, self.source_length) for size in self.batch_sizes]

    @property
    def by_source(self) -> list[Point]:
        """The points of growing sources."""
        return [Point(self.source_batch, length) for length in self.source_lengths]

    def batches(self) -> dict[Point, Batch]:
        """Return the batch of every point, the same at every call.

        A point in both series has only one batch.
        """
        return {
            point: Batch(
                np.random.default_rng(point).integers(*self.tokens, point).tolist(),
                self.new_tokens,
            )
            for point in (*self.by_batch, *self.by_source)
        }

    def calibration(self) -> list[list[int]]:
        """Return calibration sources of all lengths, which are in no batch."""
        generator = np.random.default_rng(0)
        lengths = [*self.source_lengths, self.source_length] * CALIBRATION_SOURCES
        return [generator.integers(*self.tokens, length).tolist() for length in lengths]


@dataclass(frozen=True)
class Measurement:
    """The figures of one contender at one point.

    Attributes:
        peer: whether it is another tool, which Dragoman is compared with
        batch_size: number of sources
        source_length: tokens per source
        ms_per_step: wall-clock time of a call, including the encoder, per new token
        tokens_per_second: new tokens of all sources over the median time of a call
    """

    contender: str
    peer: bool
    batch_size: int
    source_length: int
    ms_per_step: Spread
    tokens_per_second: float


def contenders(
    calibration: Calibration = (), openvino_in: Interpreter = HERE
) -> list[TextContender]:
    """Return the contenders in `NAMES`, Dragoman first.

    Failures of missing tools are reported.

    Args:
        calibration: calibration sources of Dragoman's bundles
        openvino_in: interpreter with Optimum-Intel
    """
    known = translators(calibration=calibration, openvino_in=openvino_in)
    return [contender for contender in known if contender.name in NAMES]


def measure(
    run: Run,
    *,
    shape: str,
    vocab_size: int | None,
    batch_sizes: tuple[int, ...],
    source_lengths: tuple[int, ...],
    source_batch: int,
    new_tokens: int,
    threads: int,
    rounds: int,
) -> dict[str, Any]:
    """Measure all contenders at all points."""
    from ...models.random_checkpoint import write_random_text_model

    check_lengths(shape, max(source_lengths), None, new_tokens)
    vocab_size = vocab_size or SHAPES[shape].vocab_size
    workload = Workload(
        batch_sizes=tuple(sorted(batch_sizes)),
        source_length=SOURCE_LENGTH,
        source_lengths=tuple(sorted(source_lengths)),
        source_batch=source_batch,
        new_tokens=new_tokens,
        tokens=(1, vocab_size - 1),  # without the end token (first) and padding (last)
    )
    chosen = run.chosen(contenders(workload.calibration(), run.openvino))
    write_random_text_model(shape, run.directory / "checkpoint", vocab_size=vocab_size)
    return {
        "shape": describe(shape, vocab_size),
        "new_tokens": new_tokens,
        "threads": threads,
        "rounds": rounds,
        **measure_growth(run, chosen, workload, threads=threads, rounds=rounds),
    }


def measure_growth(
    run: Run,
    contenders: Sequence[TextContender],
    workload: Workload,
    *,
    threads: int,
    rounds: int,
) -> dict[str, Any]:
    """Measure contenders at all points: `by_batch`, `by_source`, `failures`.

    A series has the points of one contender after the other. A contender that failed at any point
    is only in `failures`.
    """
    results = take_turns(
        contenders,
        {str(point): batch for point, batch in workload.batches().items()},
        checkpoint=run.directory / "checkpoint",
        directory=run.directory,
        threads=[threads],
        rounds=rounds,
        turn_seconds=TURN_SECONDS,
        check=check_rows,
        progress=run.progress,
    )
    failed = {failure.contender for failure in results.failures}
    working = [contender for contender in contenders if contender.name not in failed]

    def series(points: Sequence[Point]) -> list[Measurement]:
        return [
            Measurement(
                contender.name,
                contender.peer,
                *point,
                spread(turns.seconds, 1e3 / workload.new_tokens),
                round(point.batch_size * workload.new_tokens / turns.median, 1),
            )
            for contender in working
            for point in points
            for turns in [results.turns[str(point)][Entrant(contender.name, threads)]]
        ]

    return {
        "by_batch": series(workload.by_batch),
        "by_source": series(workload.by_source),
        "failures": results.failures,
    }


def described(record: Record) -> str:
    """Describe the model and the work on one line."""
    threads = count(record["threads"], "thread")
    return f"{record['shape']}; {record['new_tokens']} new tokens, greedy, {threads}"


COLUMNS = (
    ("", "{contender}"),
    ("batch", "{batch_size}"),
    ("source", "{source_length}"),
    ("ms/step", "{ms_per_step[0]:.2f}"),
    ("lowest - highest", "{ms_per_step[1]:.2f} - {ms_per_step[2]:.2f}"),
    ("tokens/s", "{tokens_per_second:,.0f}"),
)


def tables(record: Record) -> Iterator[Table]:
    """Yield a table for each series, with a section for each contender."""
    for name, key in (("as batches grow", "by_batch"), ("as sources grow longer", "by_source")):
        title = f"{described(record)}, {record['rounds']} rounds: {name}"
        yield table_of(record[key], COLUMNS, title=title, section=["contender"])


def picture(record: Record) -> Figure:
    """Draw milliseconds per step and tokens per second of every contender, with peers dashed."""
    from ..picture_style import COLOURS, figure, styled, tidy

    names = distinct(m["contender"] for m in record["by_batch"])
    looks = dict(zip(names, zip(COLOURS, MARKERS, strict=True), strict=False))
    with styled():
        drawn = figure(6.2)
        drawn.suptitle(described(record), fontsize="medium")
        panels = drawn.subplots(2, 2)
        for row, series, varies, x in (
            (panels[0], record["by_batch"], "batch_size", "sources in the batch"),
            (panels[1], record["by_source"], "source_length", "tokens of the source"),
        ):
            for own in sections(series, lambda m: m["contender"]):
                colour, marker = looks[own[0]["contender"]]
                look: dict[str, Any] = {
                    "label": own[0]["contender"],
                    "color": colour,
                    "marker": marker,
                    "markersize": 4,
                    "linestyle": "--" if own[0]["peer"] else "-",
                }
                sizes = [m[varies] for m in own]
                row[0].plot(sizes, [m["ms_per_step"][0] for m in own], **look)
                row[1].plot(sizes, [m["tokens_per_second"] for m in own], **look)
            for axes, y in zip(row, ("ms per step", "tokens per second"), strict=True):
                _scale(axes, series, varies)
                tidy(axes, x=x, y=y)
        handles, labels = panels[0, 0].get_legend_handles_labels()
        drawn.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return drawn


def _scale(axes: Any, measurements: Sequence[Row], varies: str) -> None:
    """Set logarithmic scales with a tick at every size."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    sizes = sorted({m[varies] for m in measurements})
    axes.set_xticks(sizes, [f"{size}" for size in sizes])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")


GROWTH = Task(
    name="growth",
    help="Compare how latency and tokens a second grow with the batch and the length of sources.",
    options=(
        SHAPE,
        VOCAB_SIZE,
        batch_sizes(
            *(1, 2, 4, 8, 16, 32, 64),
            what=f"Sources of {SOURCE_LENGTH} tokens decoded as one batch;",
        ),
        Option(
            "--source-length",
            "Tokens of every source in batches of --source-batch;",
            int,
            (8, 16, 32, 64, 128, 256, 512),
            parameter="source_lengths",
        ),
        Option("--source-batch", "Sources decoded as one batch, as they grow longer.", int, 1),
        new_tokens(),
        Option("--threads", "Threads of every contender.", int, 2),
        ROUNDS,
        ONLY,
        OPENVINO,
    ),
    measure=measure,
    rows="by_batch",
    file=lambda record, options: f"growth-{options['shape']}-{record['threads']}-threads",
    tables=tables,
    picture=picture,
)
