"""Latency and goodput of servers under load, compared with each other.

Requests arrive as a Poisson process, sent in an open loop from another process on the machine.
Peers run behind the HTTP layer of Dragoman's server, with a queue that gives a worker all waiting
requests, up to a batch. Every tool uses the arrangement of workers and threads with the highest
goodput.
"""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from dragoman.errors import DragomanError
from dragoman.runtime.serving.arrangement import Arrangement

from ...models.bundles import Calibration
from ...models.shapes import SHAPES, describe
from ...peers import ctranslate2_runtime
from ...processes import HERE, ProcessError, call_in
from .. import options
from ..contenders import text
from ..record import Record, Row, Table, table_of
from ..rounds import Failure, prepare, unchanged
from ..task import Options, Run, Task
from ..tasks.speech import read_clips
from .goodput import SLOWER, ServedTool, Workload, measure_goodput, served, standings
from .load import SEED, running, send_all

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCES = 500
OVERHEAD_OF = "Dragoman int8"
OVERHEAD_REQUESTS, OVERHEAD_ROUNDS = 30, 3


def text_workload(shape: str, vocab_size: int | None, checkpoint: Path) -> Workload:
    """Return requests of token ids, whose outputs end with end tokens; write the checkpoint."""
    from ...models.random_checkpoint import write_ending_text_model
    from ...peers import hugging_face

    vocab_size = vocab_size or SHAPES[shape].vocab_size
    write_ending_text_model(shape, checkpoint, vocab_size=vocab_size, mean_length=text.MEAN_OUTPUT)
    tokens = (1, vocab_size - 1)  # exclude end token and padding
    shortest, longest = text.SOURCE_LENGTHS
    most = text.LONGEST_OUTPUT
    modes = [mode for mode in text.ctranslate2_compute_types() if mode in ("float32", "int8")]
    translators = text.ctranslate2_translators(ctranslate2_runtime.load, modes)
    others = text.peers("Hugging Face", ["fp32"], unchanged, hugging_face.load)
    return Workload(
        describe(shape, vocab_size),
        f"sources of {shortest} to {longest} tokens, outputs of at most {most}",
        checkpoint,
        [
            *dragoman_tools(64, text.draw_sources(text.CALIBRATION_SOURCES, tokens, seed=99)),
            *served(translators, "ctranslate2", 8, 32),
            *served(others, "hugging-face", 16),
        ],
        [{"source": s, "max_new_tokens": most} for s in text.draw_sources(SOURCES, tokens)],
        first_rate=8.0,
    )


def speech_workload(whisper: Path, clips: Path) -> Workload:
    """Return requests of audio files, base64 in JSON, to an English-only Whisper of CTranslate2."""
    files = sorted(read_clips(clips))
    load = ctranslate2_runtime.load_faster_whisper
    peers = text.peers("faster-whisper", ["float32", "int8"], unchanged, load)
    return Workload(
        whisper.name,
        f"{len(files)} clips of speech, transcribed greedily without timestamps",
        whisper,
        [*dragoman_tools(16), *served(peers, "faster-whisper", 1)],
        [{"audio": base64.b64encode(file.read_bytes()).decode()} for file in files],
        first_rate=2.0,
    )


def dragoman_tools(batch: int, calibration: Calibration = ()) -> list[ServedTool]:
    """Return Dragoman's server in fp32 and int8."""
    bundles = [bundle for bundle in text.BUNDLES if bundle.precision != "int4"]
    ours = text.dragoman_contenders(text.load_bundle, bundles, calibration=calibration)
    return served(ours, "dragoman", batch)


def measure(run: Run, given: Options) -> dict[str, Any]:
    """Measure the goodput of all tools, and the overhead of HTTP and the queue."""
    if (given.whisper is None) != (given.clips is None):
        raise DragomanError("--whisper and --clips go together")
    cores = given.cores or os.cpu_count() or 1
    if given.whisper is not None:
        workload = speech_workload(given.whisper, given.clips)
    else:
        workload = text_workload(given.shape, given.vocab_size, run.checkpoint)
    tools = run.chosen(workload.tools)
    workload = workload._replace(tools=tools)
    found, failures = measure_goodput(run, workload, cores=cores, seconds=given.seconds)
    added = None
    own = next((tool for tool in tools if tool.name == OVERHEAD_OF), None)
    if given.whisper is None and own is not None:
        run.progress("what HTTP and the queue add")
        try:
            added = _overhead_ms(own, run.directory / "overhead", workload, cores)
        except ProcessError as error:
            failures.append(Failure("overhead", str(error)))
    return {
        "model": workload.model,
        "requests": workload.requests,
        "seconds": given.seconds,
        "seed": SEED,
        "slower": SLOWER,
        "tools": standings(found, tools),
        "entries": found,
        "overhead_ms": added,
        "failures": failures,
    }


def _overhead_ms(tool: ServedTool, directory: Path, workload: Workload, cores: int) -> float:
    """Return the milliseconds that HTTP and the queue add to a call of the library, without load.

    Of each source counts the fastest of several interleaved rounds; the median over sources is
    returned.
    """
    bodies = workload.bodies[:OVERHEAD_REQUESTS]
    bundle = prepare(tool, workload.checkpoint, directory)
    with running(tool.command(bundle, Arrangement(1, cores, 64))) as (url, _):
        served, called = [], []
        for _ in range(OVERHEAD_ROUNDS):
            answers = call_in(HERE, send_all, url, bodies)
            served.append([answer.seconds for answer in answers])
            called.append(call_in(HERE, call_library, bundle, cores, bodies))
    differences = np.min(served, axis=0) - np.min(called, axis=0)
    return round(float(np.median(differences)) * 1000, 3)


def call_library(directory: Path, threads: int, bodies: Sequence[dict[str, Any]]) -> list[float]:
    """Return the seconds of each call, in this process."""
    from dragoman.runtime import load

    model, seconds = load(directory, threads=threads), []
    for body in [*bodies[:2], *bodies]:  # the first two warm up
        started = time.perf_counter()
        model.generate([body["source"]], max_new_tokens=body["max_new_tokens"])
        seconds.append(time.perf_counter() - started)
    return seconds[2:]


ARRANGEMENT = "{X[arrangement][0]} x {X[arrangement][1]}, {X[arrangement][2]} at once"
COLUMNS = (
    ("", "{tool}"),
    ("p50 / p95 without load, ms", "{p50_ms:.0f} / {p95_ms:.0f}"),
    ("its own 4 x", "{own[rate]:.1f}"),
    ("workers x threads", ARRANGEMENT.replace("X", "own")),
    ("x best peer", "{own[ratio]:.2f}"),
    ("x in fp32", "{own_in_fp32[ratio]:.2f}"),
    ("p95 limit for all, ms", "{limit_ms:.0f}"),
    ("the same for all", "{common[rate]:.1f}"),
    ("workers x threads", ARRANGEMENT.replace("X", "common")),
    ("x best peer", "{common[ratio]:.2f}"),
    ("memory, MB", "{memory_mb:,.0f}"),
)


def _best(record: Record) -> list[Row]:
    """Return the entry of each tool with its highest goodput."""
    entries = {f"{entry['tool']} {entry['arrangement']}": entry for entry in record["entries"]}
    return [entries[f"{tool['tool']} {tool['own']['arrangement']}"] for tool in record["tools"]]


def tables(record: Record) -> Iterator[Table]:
    """Yield a row for each tool."""
    slower = f"{record['slower']:g}"
    rows = [
        {
            **tool,
            "p50_ms": best["alone"]["p50"] * 1000,
            "p95_ms": best["alone"]["p95"] * 1000,
            "limit_ms": record["slower"] * best["fastest"] * 1000,
            "memory_mb": best["memory_mb"],
        }
        for tool, best in zip(record["tools"], _best(record), strict=True)
    ]
    title = (
        f"{record['model']}; {record['requests']}. Requests a second at which p95 is at most "
        f"{slower} x that of a tool's own requests alone; and the same for all in fp32, and for "
        f"all others: {slower} x that of the fastest of them"
    )
    yield table_of(rows, COLUMNS, title=title)


def notes(record: Record) -> Iterator[str]:
    """Yield the overhead of HTTP and the queue."""
    if record["overhead_ms"] is not None:
        yield f"HTTP and queue add {record['overhead_ms']:.2f} ms to a request without load"


def picture(record: Record) -> Figure:
    """Draw latency percentiles over the rate, of each tool at its best; peers are dashed."""
    from ..picture_style import figure, legend_below, looks, styled, tidy

    best, percentiles = _best(record), ("p50", "p95", "p99")
    with styled():
        drawn = figure(4.2)
        drawn.suptitle(record["model"], fontsize="medium")
        panels = drawn.subplots(1, 3, sharey=True)
        for panel, name in zip(panels, percentiles, strict=True):
            for entry, look in zip(best, looks(), strict=False):
                ours = entry["tool"].startswith(text.DRAGOMAN)
                look |= {"label": entry["tool"], "linestyle": "-" if ours else "--"}
                points = [point for point in entry["points"] if not point["failed"]]
                times = [point[name] * 1000 for point in points]
                panel.plot([point["rate"] for point in points], times, **look)
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            panel.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
            tidy(panel, x="requests a second", y=f"{name}, ms")
        for fastest in {entry["fastest"] for entry in best}:
            panels[1].axhline(record["slower"] * fastest * 1000, color="grey", linestyle=":")
        legend_below(drawn, panels[0])
    return drawn


def _file(record: Record, options: Any) -> str:
    whisper = options["whisper"]
    name = f"whisper-{whisper.name.removeprefix('whisper-')}" if whisper else options["shape"]
    return f"serving-{name}-{options['cores'] or os.cpu_count()}-cores"


SPEECH = "Speech instead of texts: an English-only Whisper in CTranslate2's format."
CLIPS = "With --whisper: folder of audio files and transcripts.tsv."

SERVING = Task(
    name="serving",
    help="Compare how many requests a second servers answer in time.",
    options=(
        options.SHAPE,
        options.VOCAB_SIZE,
        options.option("--whisper", SPEECH, kind=Path),
        options.option("--clips", CLIPS, kind=Path),
        options.CORES,
        options.option(
            "--seconds", "That requests arrive at each rate.", 15.0, click.FloatRange(1)
        ),
        options.ONLY,
    ),
    measure=measure,
    rows="tools",
    file=_file,
    tables=tables,
    notes=notes,
    picture=picture,
)
