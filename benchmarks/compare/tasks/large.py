"""Compares what a large model takes: building, its files, loading, memory and steps.

All tools read the same checkpoint, in fp16 with seeded random weights in the shape of a published
model, and convert it in processes of their own. Dragoman's build includes its proof. Decoding takes
turns, greedily and with as many new tokens for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ...machine import memory_mb
from ...models.shapes import SHAPES, describe
from ...peers import ctranslate2_runtime, openvino
from ...peers.interface import Batch, Rows
from ...processes import HERE, Interpreter, ProcessError, call_in
from .. import options
from ..contenders import text
from ..record import Record, Row, Table, ranged, table_of
from ..rounds import Entrant, Failure, Worker
from ..task import Options, Run, Task
from .decoding import TURN_SECONDS, check_lengths, pace_of


def contenders(threads: int, openvino_in: Interpreter = HERE) -> list[text.TextContender]:
    """Return Dragoman in its precisions, then other tools."""
    from ...peers import optimum_onnx

    converted = ctranslate2_runtime.prepare_translator, ctranslate2_runtime.load_translator
    exported = optimum_onnx.prepare, optimum_onnx.load
    build = partial(text.build_bundle, threads=threads)
    return [
        *(
            replace(contender, prepare=partial(build, precision=contender.precision))
            for contender in text.dragoman_contenders(text.load_bundle)
        ),
        *text.peers(text.CTRANSLATE2, ["float32", "int8"], *converted),
        *text.peers("Optimum-ONNX", ["fp32", "int8"], *exported, needs_torch=True),
        *text.openvino_contenders(openvino.load, openvino_in),
    ]


def measure(run: Run, given: Options) -> dict[str, Any]:
    """Measure all contenders."""
    from ...models.random_checkpoint import write_random_large_model

    threads, new_tokens = given.threads, given.new_tokens
    vocab_size = SHAPES[given.shape].vocab_size
    chosen = run.chosen(contenders(threads, run.openvino))
    run.progress("writing the checkpoint")
    call_in(HERE, write_random_large_model, given.shape, run.checkpoint)
    ready: list[text.TextContender] = []
    built: dict[str, tuple[float, float]] = {}
    failures: list[Failure] = []
    for number, contender in enumerate(chosen):
        run.progress(f"building {contender.name}")
        path = run.directory / f"built-{number}" / "model"  # tools share files beside it
        path.parent.mkdir()
        try:
            work = partial(text.measured_preparation, contender.prepare, run.checkpoint, path)
            prepared, seconds, peak = call_in(contender.interpreter, work)
        except ProcessError as error:
            failures.append(Failure(contender.name, f"building: {error}"))
            continue
        built[contender.name] = seconds, peak
        again = partial(text.prepared_before, prepared=prepared)
        ready.append(replace(contender, prepare=again))
    batches = {
        f"batch {size}": Batch(text.draw_sources(size, (3, vocab_size), size, (20, 20)), new_tokens)
        for size in given.batch_sizes
    }
    loaded: dict[str, float] = {}

    def start(contender: text.TextContender, directory: Path, threads: int) -> Worker[Batch, Rows]:
        worker = Worker(contender, directory, threads)
        loaded[contender.name] = memory_mb(worker.pid)
        return worker

    ways: dict[str, Any] = {"rounds": given.rounds, "turn_seconds": TURN_SECONDS}
    ways |= {"check": check_lengths, "start": start}
    results = run.take_turns(ready, batches, threads=[threads], **ways)
    rows: list[Row] = []
    for footprint in results.footprints:
        entrant = Entrant(footprint.contender, threads)
        seconds, peak = built[footprint.contender]
        paces = [
            pace_of(results.turns[name][entrant], len(batch.sources), new_tokens)["ms_per_step"]
            for name, batch in batches.items()
        ]
        rows.append(
            {
                "contender": footprint.contender,
                "build_seconds": round(seconds, 1),
                "build_peak_mb": round(peak),
                "disk_mb": footprint.disk_mb,
                "load_seconds": footprint.load_seconds,
                "loaded_mb": round(loaded[footprint.contender]),
                "peak_mb": footprint.peak_memory_mb,
                "ms_per_step": paces,
            }
        )
    return {
        "shape": describe(given.shape, vocab_size),
        "batch_sizes": given.batch_sizes,
        "new_tokens": new_tokens,
        "threads": threads,
        "rounds": given.rounds,
        "contenders": rows,
        "failures": [*failures, *results.failures],
    }


def tables(record: Record) -> Iterator[Table]:
    """Yield the table of a record."""
    sizes = record["batch_sizes"]
    columns = [
        ("", "{contender}"),
        ("build, s", "{build_seconds:.0f}"),
        ("its peak, GB", "{build_peak:.1f}"),
        ("files, GB", "{disk:.2f}"),
        ("load, s", "{load_seconds:.2f}"),
        ("loaded, GB", "{loaded:.2f}"),
        *((f"ms/step, batch {size}", f"{{paces[{n}]}}") for n, size in enumerate(sizes)),
    ]
    in_gb = "build_peak", "disk", "loaded"
    rows = [
        row
        | {name: row[f"{name}_mb"] / 1e3 for name in in_gb}
        | {"paces": [ranged(pace, 1) for pace in row["ms_per_step"]]}
        for row in record["contenders"]
    ]
    title = "{shape}; {threads} threads, {new_tokens} new tokens, {rounds} rounds"
    yield table_of(rows, columns, title=title.format_map(record))


LARGE_SHAPES = [name for name in SHAPES if name not in options.TEXT_SHAPES]

LARGE = Task(
    name="large",
    help="Compare building, loading, memory and steps of a large model.",
    options=(
        options.option("--shape", "Shape of the model.", "nllb-600m", LARGE_SHAPES),
        options.batch_sizes(1, 8, what="Sources of 20 tokens decoded as one batch;"),
        options.new_tokens(),
        *options.WAYS,
    ),
    measure=measure,
    rows="contenders",
    file=lambda record, options: f"large-{options['shape']}-{record['threads']}-threads",
    tables=tables,
)
