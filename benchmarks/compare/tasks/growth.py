"""Compares the growth of latency and tokens per second with batch size and source length.

One series varies the batch size with sources of 32 tokens; the other varies the source length at
one batch size. Every contender decodes the same number of new tokens greedily; the time includes
the encoder. The weights are seeded random numbers in the shape of published models. Dragoman's int8
and int4 are calibrated on other sources of these lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, product
from typing import TYPE_CHECKING, Any, NamedTuple

from ...models.bundles import Calibration
from ...models.shapes import SHAPES, check_lengths, describe
from ...peers.interface import Batch
from ...processes import HERE, Interpreter
from .. import options
from ..contenders.text import TextContender, draw_sources, translators
from ..record import Record, Table, sections, table_of
from ..rounds import Entrant, count
from ..task import Options, Run, Task
from .decoding import TURN_SECONDS, pace_of
from .decoding import check_lengths as check_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE_LENGTH = 32
"""As the batch grows."""
CALIBRATION_SOURCES = 16
"""Of each length."""

NEAREST = "CTranslate2 float32", "CTranslate2 int8", "OpenVINO int8"
NAMES = ("Dragoman fp32", "Dragoman int8", "Dragoman int4", *NEAREST)
"""Dragoman's precisions and its nearest rivals: a picture of all tools could not be read."""


class Point(NamedTuple):
    """The number of sources of a batch, and the tokens of each."""

    batch_size: int
    source_length: int

    def __str__(self) -> str:
        return f"batch {self.batch_size}, source {self.source_length}"


def batches(points: Iterable[Point], new_tokens: int, tokens: tuple[int, int]) -> dict[str, Batch]:
    """Return the batch of every point by its name, the same at every call."""
    drawn = {p: draw_sources(p.batch_size, tokens, p, (p.source_length,) * 2) for p in points}
    return {str(point): Batch(sources, new_tokens) for point, sources in drawn.items()}


def contenders(
    calibration: Calibration = (), openvino_in: Interpreter = HERE
) -> list[TextContender]:
    """Return the contenders in `NAMES`, Dragoman first; arguments as of `translators`."""
    known = translators(calibration=calibration, openvino_in=openvino_in)
    return [contender for contender in known if contender.name in NAMES]


def measure(run: Run, given: Options) -> dict[str, Any]:
    """Measure all contenders at all points."""
    from ...models.random_checkpoint import write_random_text_model

    shape, lengths = given.shape, sorted(given.source_lengths)
    check_lengths(shape, lengths[-1], None, given.new_tokens)
    vocab_size = given.vocab_size or SHAPES[shape].vocab_size
    tokens = (1, vocab_size - 1)  # without the end token (first) and padding (last)
    calibration: list[list[int]] = []
    for length in [*lengths, SOURCE_LENGTH]:
        calibration += draw_sources(CALIBRATION_SOURCES, tokens, 0, (length, length))
    chosen = run.chosen(contenders(calibration, run.openvino))
    write_random_text_model(shape, run.checkpoint, vocab_size=vocab_size)
    series = {
        "by_batch": [Point(size, SOURCE_LENGTH) for size in sorted(given.batch_sizes)],
        "by_source": [Point(given.source_batch, length) for length in lengths],
    }
    common = {"new_tokens": given.new_tokens, "threads": given.threads, "rounds": given.rounds}
    return {
        "shape": describe(shape, vocab_size),
        **common,
        **measure_growth(run, chosen, series, tokens, **common),
    }


def measure_growth(
    run: Run,
    contenders: Sequence[TextContender],
    series: Mapping[str, Sequence[Point]],
    tokens: tuple[int, int],
    *,
    new_tokens: int,
    threads: int,
    rounds: int,
) -> dict[str, Any]:
    """Measure contenders at the points of all series, of which shared ones are measured once.

    Returns:
        for each series, the points of one contender after the other, with the figures of `pace_of`
    """
    work = batches(chain(*series.values()), new_tokens, tokens)
    ways: dict[str, Any] = {"turn_seconds": TURN_SECONDS, "check": check_rows, "rounds": rounds}
    results = run.take_turns(contenders, work, threads=[threads], **ways)
    figures: dict[str, Any] = {name: [] for name in series} | {"failures": results.failures}
    for name, contender in product(series, contenders):
        for point in series[name]:
            if turns := results.turns[str(point)].get(Entrant(contender.name, threads)):
                row = {"contender": contender.name, "peer": contender.peer, **point._asdict()}
                figures[name].append(row | pace_of(turns, point.batch_size, new_tokens))
    return figures


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
    from ..picture_style import figure, legend_below, looks, styled, tidy

    with styled():
        drawn = figure(6.2)
        drawn.suptitle(described(record), fontsize="medium")
        panels = drawn.subplots(2, 2)
        for row, series, varies, x in (
            (panels[0], record["by_batch"], "batch_size", "sources in the batch"),
            (panels[1], record["by_source"], "source_length", "tokens of the source"),
        ):
            for own, look in zip(sections(series, "contender"), looks(), strict=False):
                line = "--" if own[0]["peer"] else "-"
                look |= {"label": own[0]["contender"], "linestyle": line}
                sizes = [m[varies] for m in own]
                row[0].plot(sizes, [m["ms_per_step"][0] for m in own], **look)
                row[1].plot(sizes, [m["tokens_per_second"] for m in own], **look)
            sizes = sorted({m[varies] for m in series})
            for axes, y in zip(row, ("ms per step", "tokens per second"), strict=True):
                axes.set_xscale("log", base=2)
                axes.set_yscale("log", base=2)
                axes.set_xticks(sizes, [f"{size}" for size in sizes])
                axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
                tidy(axes, x=x, y=y)
        legend_below(drawn, panels[0, 0])
    return drawn


BATCHES = f"Sources of {SOURCE_LENGTH} tokens decoded as one batch;"
SOURCES = "Tokens of every source in batches of --source-batch;"
LENGTHS = (8, 16, 32, 64, 128, 256, 512)

GROWTH = Task(
    name="growth",
    help="Compare how latency and tokens a second grow with the batch and the length of sources.",
    options=(
        options.SHAPE,
        options.VOCAB_SIZE,
        options.batch_sizes(1, 2, 4, 8, 16, 32, 64, what=BATCHES),
        options.option("--source-length", SOURCES, LENGTHS, parameter="source_lengths"),
        options.option("--source-batch", "Sources decoded as one batch, as they grow longer.", 1),
        options.new_tokens(),
        options.THREADS,
        options.rounds(),
        options.ONLY,
        options.OPENVINO,
    ),
    measure=measure,
    rows="by_batch",
    file=lambda record, options: f"growth-{options['shape']}-{record['threads']}-threads",
    tables=tables,
    picture=picture,
)
