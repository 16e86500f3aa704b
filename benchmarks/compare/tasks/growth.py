"""Compares the growth of latency and tokens per second with batches, sources and outputs.

One series varies the batch size with sources of 32 tokens; another varies the source length at one
batch size, and a third, if lengths are given, the number of new tokens. Decoding is greedy; the
time includes the encoder. The weights are seeded random numbers in the shape of published models.
Dragoman's int8 and int4 are calibrated on other sources of these lengths.
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
from ..contenders.text import DRAGOMAN, TextContender, draw_sources, translators
from ..contenders.variants import RECURRENT, with_recurrent
from ..record import Record, Row, Table, sections, table_of
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

SERIES = {
    "by_batch": ("batches grow", "batch_size", "sources in the batch"),
    "by_source": ("sources grow longer", "source_length", "tokens of the source"),
    "by_output": ("outputs grow longer", "new_tokens", "tokens of the output"),
}
"""What grows, its field, and the label of its axis."""


class Point(NamedTuple):
    """The number of sources of a batch, and the tokens of each and of its output."""

    batch_size: int
    source_length: int
    new_tokens: int

    def __str__(self) -> str:
        numbers = f"batch {self.batch_size}, source {self.source_length}"
        return f"{numbers}, {self.new_tokens} new tokens"


def batches(points: Iterable[Point], tokens: tuple[int, int]) -> dict[str, Batch]:
    """Return the batch of every point by its name, the same at every call."""
    drawn = {p: draw_sources(p.batch_size, tokens, p[:2], (p.source_length,) * 2) for p in points}
    return {str(point): Batch(sources, point.new_tokens) for point, sources in drawn.items()}


def contenders(
    calibration: Calibration = (), openvino_in: Interpreter = HERE, *, recurrent: bool = False
) -> list[TextContender]:
    """Return the contenders in `NAMES`, Dragoman first; arguments as of `translators`.

    Dragoman's int8 with a recurrent decoder takes the place of int4, if it is wanted.
    """
    known = translators(calibration=calibration, openvino_in=openvino_in)
    names = {*NAMES}
    if recurrent:
        known = with_recurrent(known, shortlist=False)
        names = {*NAMES, f"{DRAGOMAN} int8{RECURRENT}"} - {f"{DRAGOMAN} int4"}
    return [contender for contender in known if contender.name in names]


def measure(run: Run, given: Options) -> dict[str, Any]:
    """Measure all contenders at all points."""
    from ...models.random_checkpoint import write_random_text_model

    shape, lengths = given.shape, sorted(given.source_lengths)
    longest_output = max([given.new_tokens, *given.output_lengths])
    check_lengths(shape, lengths[-1], None, longest_output)
    vocab_size = given.vocab_size or SHAPES[shape].vocab_size
    tokens = (1, vocab_size - 1)  # without the end token (first) and padding (last)
    calibration: list[list[int]] = []
    for length in [*lengths, SOURCE_LENGTH]:
        calibration += draw_sources(CALIBRATION_SOURCES, tokens, 0, (length, length))
    recurrent = shape == "student"
    chosen = run.chosen(contenders(calibration, run.openvino, recurrent=recurrent))
    write_random_text_model(shape, run.checkpoint, vocab_size=vocab_size)
    series = {
        "by_batch": [Point(n, SOURCE_LENGTH, given.new_tokens) for n in sorted(given.batch_sizes)],
        "by_source": [Point(given.source_batch, n, given.new_tokens) for n in lengths],
        "by_output": [Point(1, SOURCE_LENGTH, n) for n in sorted(given.output_lengths)],
    }
    common = {"threads": given.threads, "rounds": given.rounds}
    return {
        "shape": describe(shape, vocab_size),
        "new_tokens": given.new_tokens,
        **common,
        **measure_growth(run, chosen, series, tokens, **common),
    }


def measure_growth(
    run: Run,
    contenders: Sequence[TextContender],
    series: Mapping[str, Sequence[Point]],
    tokens: tuple[int, int],
    *,
    threads: int,
    rounds: int,
) -> dict[str, Any]:
    """Measure contenders at the points of all series, of which shared ones are measured once.

    Returns:
        for each series, the points of one contender after the other, with the figures of `pace_of`
    """
    work = batches(chain(*series.values()), tokens)
    ways: dict[str, Any] = {"turn_seconds": TURN_SECONDS, "check": check_rows, "rounds": rounds}
    results = run.take_turns(contenders, work, threads=[threads], **ways)
    figures: dict[str, Any] = {name: [] for name in series} | {"failures": results.failures}
    for name, contender in product(series, contenders):
        for point in series[name]:
            if turns := results.turns[str(point)].get(Entrant(contender.name, threads)):
                row = {"contender": contender.name, "peer": contender.peer, **point._asdict()}
                figures[name].append(row | pace_of(turns, point.batch_size, point.new_tokens))
    return figures


def described(record: Record) -> str:
    """Describe the model and the work on one line."""
    threads = count(record["threads"], "thread")
    return f"{record['shape']}; {record['new_tokens']} new tokens, greedy, {threads}"


def series_of(record: Record) -> Iterator[tuple[str, list[Row], str, str]]:
    """Yield what grows, the rows, the field that varies, and the label of its axis."""
    for key, (what, varies, label) in SERIES.items():
        if rows := record.get(key):
            yield what, rows, varies, label


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
    for what, rows, varies, _ in series_of(record):
        title = f"{described(record)}, {record['rounds']} rounds: as {what}"
        columns = [*COLUMNS]
        if varies == "new_tokens":
            columns.insert(3, ("output", "{new_tokens}"))
        yield table_of(rows, columns, title=title, section=["contender"])


def picture(record: Record) -> Figure:
    """Draw milliseconds per step and tokens per second of every contender, with peers dashed."""
    from ..picture_style import figure, legend_below, looks, styled, tidy

    every = [*series_of(record)]
    with styled():
        drawn = figure(3.1 * len(every))
        drawn.suptitle(described(record), fontsize="medium")
        panels = drawn.subplots(len(every), 2, squeeze=False)
        for row, (_, series, varies, x) in zip(panels, every, strict=True):
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
OUTPUTS = f"Tokens generated for one source of {SOURCE_LENGTH} tokens;"
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
        options.option("--output-length", OUTPUTS, (), int, parameter="output_lengths"),
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
