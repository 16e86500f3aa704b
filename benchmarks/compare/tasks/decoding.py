"""Measures and reports decoding a fixed number of new tokens: latency, throughput, correctness."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.errors import DragomanError

from ...peers.interface import Batch, Rows
from ...processes import ProcessError
from .. import record as records
from ..contenders import text
from ..contenders.text import AS_MANY_ROWS, DRAGOMAN, REFERENCE, TextContender
from ..record import Record, Row, Table, distinct, pivoted, ranged, sections, table_of
from ..rounds import Entrant, Interrupted, Turns, against, count, paired, spread
from ..task import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dragoman.runtime.decoding.results import Result

TURN_SECONDS = 0.5
"""A batch is decoded again until that has taken so long."""
AllTurns = Mapping[Entrant, Turns[Rows]]
FIRST = ", first token"
"""Added to the name of a batch of one new token."""


def measure_decoding(
    run: Run, contenders: Sequence[TextContender], workload: text.Workload, checkpoint: Path
) -> dict[str, Any]:
    """Measure contenders: `measurements`, `costs`, `footprints`, `failures`.

    With beams, a batch of one new token is also measured, to compute the time of the steps alone.
    After an interruption, the complete batch sizes are the result.
    """
    batches = {f"batch {size}": workload.batch(size) for size in workload.batch_sizes}
    if workload.num_beams > 1 and workload.new_tokens > 1:
        batches |= {f"{name}{FIRST}": b._replace(new_tokens=1) for name, b in batches.items()}
    ways: dict[str, Any] = {"threads": workload.threads, "rounds": workload.rounds}
    ways |= {"turn_seconds": workload.turn_seconds, "check": check_lengths}
    try:
        results = run.take_turns(contenders, batches, checkpoint=checkpoint, **ways)
    except Interrupted as interruption:
        results = interruption.results
    measurements: list[Row] = []
    costs: list[Row] = []
    by_name = {contender.name: contender for contender in contenders}
    for size in workload.batch_sizes:
        if turns := results.turns.get(f"batch {size}"):
            first = results.turns.get(f"batch {size}{FIRST}", {})
            measurements += measurements_of(turns, by_name, size, workload.new_tokens)
            costs += costs_of(turns, first, size, workload.new_tokens)
    return {
        "measurements": measurements,
        "costs": costs,
        "footprints": results.footprints,
        "failures": results.failures,
    }


def check_lengths(batch: Batch, rows: Rows) -> None:
    """Raise ProcessError unless every source got exactly the new tokens of the batch."""
    lengths = {len(row) for row in rows}
    if len(rows) != len(batch.sources) or lengths != {batch.new_tokens}:
        raise ProcessError(
            f"decoding: expected {len(batch.sources)} rows of {batch.new_tokens} new tokens, "
            f"found {len(rows)} rows of {sorted(lengths)}"
        )


def pace_of(turns: Turns[Rows], batch_size: int, new_tokens: int) -> dict[str, Any]:
    """Return the figures of the turns of a contender.

    Returns:
        `ms_per_step`: spread of the time of a call, including the encoder, per new token;
        `tokens_per_second`: new tokens of all sources over the median time of a call
    """
    return {
        "ms_per_step": spread(turns.seconds, 1e3 / new_tokens),
        "tokens_per_second": round(batch_size * new_tokens / turns.median, 1),
    }


def measurements_of(
    turns: AllTurns, contenders: Mapping[str, TextContender], batch_size: int, new_tokens: int
) -> list[Row]:
    """Return a row for each timed contender and number of threads, at one batch size.

    Returns:
        rows with the figures of `pace_of`; those of `against` the peers, each at its best number of
        threads, and against those in fp32, if the contender is in fp32; `identical`: number of
        sources whose tokens equal the reference's; and `thread_ratio` and `fp32_thread_ratio` to
        the best peers with as many threads
    """
    expected = next(t.outcome for entrant, t in turns.items() if entrant.contender == REFERENCE)
    timed = {e: own for e, own in turns.items() if own.counted and AS_MANY_ROWS not in e.contender}
    peers = {e: own.median for e, own in timed.items() if contenders[e.contender].peer}
    rows: list[Row] = []
    for entrant, own in timed.items():
        fp32, median = contenders[entrant.contender].fp32, own.median
        in_fp32 = {e: s for e, s in peers.items() if fp32 and contenders[e.contender].fp32}
        same, same_in_fp32 = (
            {e: s for e, s in group.items() if e.threads == entrant.threads}
            for group in (peers, in_fp32)
        )
        rows.append(
            {
                **entrant._asdict(),
                "fp32": fp32,
                "batch_size": batch_size,
                **pace_of(own, batch_size, new_tokens),
                **against(median, peers),
                **against(median, in_fp32, "fp32"),
                "identical": sum(a == b for a, b in zip(expected, own.outcome, strict=True)),
                "thread_ratio": against(median, same)["ratio"],
                "fp32_thread_ratio": against(median, same_in_fp32)["ratio"],
            }
        )
    return rows


def costs_of(turns: AllTurns, first: AllTurns, batch_size: int, new_tokens: int) -> list[Row]:
    """Return the costs of beam search, and of this version relative to another.

    A step with beams is compared with a greedy step of as many rows, and a call of Dragoman with a
    call of the other version. `first` are turns that generated only one token, if measured.

    Returns:
        rows of what is compared, `of` a "step" after the first, without the encoder, or a "call";
        the spreads of both times, and of their ratio round by round
    """
    calls = {entrant: t.seconds for entrant, t in turns.items() if t.counted}
    steps = {
        entrant: [(call - t.median) / (new_tokens - 1) for call in calls[entrant]]
        for entrant, t in first.items()
        if t.counted
    }
    return [
        {
            "contender": entrant.contender,
            "compared_with": other.contender,
            "threads": entrant.threads,
            "batch_size": batch_size,
            "of": of,
            "ms": spread(seconds[entrant], 1e3),
            "compared_ms": spread(seconds[other], 1e3),
            "ratio": paired(seconds[entrant], seconds[other]),
        }
        for suffix, of, seconds in ((AS_MANY_ROWS, "step", steps), (text.BEFORE, "call", calls))
        for entrant in seconds
        for other in [entrant._replace(contender=f"{entrant.contender}{suffix}")]
        if other in seconds
    ]


def texts_of(results: Sequence[Result], what: str) -> list[str]:
    """Return the texts of results; raise DragomanError if a source was rejected."""
    rejected = [result.error for result in results if result.error]
    if rejected:
        expected = f"{what}: expected a result for every source, found {len(rejected)} rejected"
        raise DragomanError(f"{expected}, the first with: {rejected[0]}")
    return [result.text or "" for result in results]


COLUMNS = (
    ("", "{contender}"),
    ("batch", "{batch_size}"),
    ("threads", "{threads}"),
    ("ms/step", "{ms_per_step[0]:.2f}"),
    ("lowest - highest", "{ms_per_step[1]:.2f} - {ms_per_step[2]:.2f}"),
    ("tokens/s", "{tokens_per_second:,.0f}"),
    ("x best peer", "{ratio:.2f}"),
    ("x in fp32", "{fp32_ratio:.2f}"),
    ("same tokens", "{identical}/{batch_size}"),
    ("g2p-en error", "{word_error:.2%}"),
)


def decoding(num_beams: int) -> str:
    """Return the name of a decoding strategy."""
    return "greedy" if num_beams == 1 else f"{num_beams} beams"


def tables(record: Record) -> Iterator[Table]:
    """Yield a row for each measurement, by batch size."""
    longest = f" to {record['longest_source']}" if record.get("longest_source") else ""
    errors = record["word_error"]
    rows = [{**m, "word_error": errors.get(m["contender"])} for m in record["measurements"]]
    title = (
        f"{record['shape']}; source {record['source_length']}{longest}, {record['new_tokens']} new "
        f"tokens, {decoding(record.get('num_beams', 1))}, {record['rounds']} rounds"
    )
    yield table_of(rows, COLUMNS, title=title, section=["batch_size"])


def notes(record: Record) -> Iterator[str]:
    """Yield the best peers, how Dragoman compares, floors, costs and footprints."""
    for at_size in sections(record["measurements"], "batch_size"):
        best = next((m["best_peer"] for m in at_size if m["best_peer"]), None)
        in_fp32 = next((m["best_fp32_peer"] for m in at_size if m["best_fp32_peer"]), None)
        if best is not None:
            yield f"best peer at batch {at_size[0]['batch_size']}: {best}; in fp32: {in_fp32}"
    yield from standings(record["measurements"])
    yield from reached(record)
    for cost in record.get("costs", ()):
        median, lowest, highest = cost["ratio"]
        yield (
            f"{Entrant(cost['contender'], cost['threads'])}, batch {cost['batch_size']}: "
            f"a {cost['of']} takes {cost['ms'][0]:.2f} ms, {median:.3f} ({lowest:.3f} - "
            f"{highest:.3f}) times that of {cost['compared_with']}"
        )
    yield from records.footprint_notes(record)


def standings(measurements: Sequence[Row]) -> Iterator[str]:
    """Compare Dragoman with peers in fp32, and with all, at the best and at equal threads."""
    threads_tried = {m["threads"] for m in measurements}

    def case(row: Row) -> str:
        return f"batch {row['batch_size']}"

    for own in sections(measurements, "contender"):
        name = own[0]["contender"]
        if not name.startswith(DRAGOMAN):
            continue
        best = [_fastest(at_size) for at_size in sections(own, "batch_size")]
        kinds = {"fp32_": "peer in fp32", "": "peer of all"}
        yield from records.standings(name, best, kinds, case)
        alike = {f"{kind}thread_": f"{peers} with as many" for kind, peers in kinds.items()}
        for rows in sections(own, "threads") if len(threads_tried) > 1 else ():
            entrant = str(Entrant(name, rows[0]["threads"]))
            yield from records.standings(entrant, rows, alike, case)


def reached(record: Record) -> Iterator[str]:
    """Compare Dragoman's precisions with the floor."""
    medians = _medians(record["measurements"])
    for pace in record.get("paces", ()):
        products = ", ".join(f"{n:,.0f} in {name}" for name, n in pace["products"].items())
        yield (
            f"{count(pace['threads'], 'thread')}: {pace['gigabytes_per_second']:.1f} GB/s are "
            f"read, 10^9 products a second: {products}"
        )
        floors = [floor for floor in record["floors"] if floor["threads"] == pace["threads"]]
        for own in sections(floors, "contender"):
            found = "; ".join(
                f"batch {floor['batch_size']}: {floor['ms']:.2f} ms, {floor['ms'] / step:.0%}"
                for floor in own
                if (step := medians.get(_case(floor)))
            )
            if found:
                yield f"floor of {own[0]['contender']}, and its share of a step: {found}"


def _case(row: Row) -> tuple[str, int, int]:
    return row["contender"], row["threads"], row["batch_size"]


def _medians(measurements: Sequence[Row]) -> dict[tuple[str, int, int], float]:
    """Return the median milliseconds per step of each case."""
    return {_case(m): m["ms_per_step"][0] for m in measurements}


def documentation(record: Record) -> Iterator[Table]:
    """Yield the tables of the documentation: speed, footprints, floors and costs by contender."""
    medians = _medians(record["measurements"])

    def share(floor: Row) -> str:
        ms = medians[_case(floor)]
        return f"{floor['ms']:.2f} of {ms:.2f} ms, {floor['ms'] / ms:.0%}"

    def cost(row: Row) -> str:
        return f"{row['ms'][0]:.2f}, {row['compared_ms'][0]:.2f}, {ranged(row['ratio'], 3)}"

    yield _speed(record)
    if record["footprints"]:
        yield _footprints(record["footprints"])
    if "floors" in record:
        yield _by_size(record["floors"], share)
    for costs in sections(record.get("costs", ()), "of"):
        yield _by_size(costs, cost, f": ms per {costs[0]['of']}, compared, ratio")


def _by_size(rows: Sequence[Row], cell: Callable[[Row], str], what: str = "") -> Table:
    sizes = distinct(f"{count(row['batch_size'], 'source')}{what}" for row in rows)
    return Table(["", "threads", *sizes], pivoted(rows, ["contender", "threads"], cell))


def _speed(record: Record) -> Table:
    rows: Sequence[Row] = record["measurements"]
    threads: Sequence[int] = record["threads"]
    sizes = distinct(row["batch_size"] for row in rows)
    fewest = min(threads)
    alike = "thread_ratio" in rows[0]
    best = [_fastest(case) for case in sections(rows, "contender", "batch_size")]

    def cell(row: Row) -> str:
        text = ranged(row["ms_per_step"])
        return f"**{text}**" if row in best else text

    def comparisons(own: Sequence[Row]) -> Iterator[str]:
        at_best = [row for row in own if row in best]
        yield from (_ratios(at_best, "ratio"), _ratios(at_best, "fp32_ratio"))
        if alike:
            few = [row for row in own if row["threads"] == fewest]
            yield from (_ratios(few, "thread_ratio"), _ratios(few, "fp32_thread_ratio"))
        yield f"{sum(row['identical'] for row in at_best)} of {sum(sizes)}"

    headings = [
        *("", *(f"{count(s, 'source')}, {count(n, 'thread')}" for s in sizes for n in threads)),
        *("against the best peer", "in fp32"),
        *((f"with {count(fewest, 'thread')} for all", "in fp32") if alike else ()),
        "same tokens",
    ]
    return Table(headings, pivoted(rows, ["contender"], cell, more=comparisons))


def _footprints(rows: Sequence[Row]) -> Table:
    load, peak = "{load_seconds:.2f} s".format_map, "{peak_memory_mb:,.0f} MB".format_map
    disk = "{disk_mb:,.0f} MB".format_map
    lines = pivoted(rows, ["contender"], load, peak, more=lambda own: [disk(own[0])])
    threads = distinct(count(row["threads"], "thread") for row in rows)
    headings = [f"{what}, {n}" for what in ("load", "peak memory") for n in threads]
    return Table(["", *headings, "disk"], lines)


def _fastest(rows: Sequence[Row]) -> Row:
    return min(rows, key=lambda row: row["ms_per_step"][0])


def _ratios(best: Sequence[Row], key: str) -> str:
    """Format the ratios at every batch size, such as "3.10x / 2.05x"; "" without a peer."""
    ratios = [row[key] for row in best]
    return "" if None in ratios else " / ".join(f"{ratio:.2f}x" for ratio in ratios)


def picture(record: Record) -> Figure:
    """Draw bars of tokens per second, for each contender at its best number of threads."""
    from matplotlib.figure import Figure

    groups = list(sections(record["measurements"], "batch_size"))
    names = distinct(m["contender"] for m in record["measurements"])[::-1]
    figure = Figure(figsize=(2 + 2.8 * len(groups), 1.2 + 0.3 * len(names)), layout="constrained")
    tools = {DRAGOMAN: "tab:blue", text.CTRANSLATE2: "tab:orange"}
    colours = [tools.get(name.split()[0], "tab:gray") for name in names]
    panels = figure.subplots(1, len(groups), squeeze=False)[0]
    for axes, at_size in zip(panels, groups, strict=True):
        best = {own[0]["contender"]: _fastest(own) for own in sections(at_size, "contender")}
        speeds = [best[name]["tokens_per_second"] for name in names]
        bars = axes.barh(range(len(names)), speeds, color=colours)
        axes.bar_label(bars, fmt="{:,.0f}", fontsize=8, padding=2)
        axes.set_yticks(range(len(names)), names if at_size is groups[0] else [])
        axes.set_xlim(0, max(speeds) * 1.2)
        axes.set_title(f"batch {at_size[0]['batch_size']}", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    threads = " or ".join(map(str, record["threads"]))
    strategy = decoding(record.get("num_beams", 1))
    figure.supxlabel("new tokens per second", fontsize=9)
    figure.suptitle(f"{record['shape']}, {strategy}, {threads} threads", fontsize=10)
    return figure
