"""Compares what a large model takes: building, its files, loading, memory and steps.

All tools read the same checkpoint, in fp16 with seeded random weights in the shape of a published
model, and convert it in processes of their own. Dragoman's build includes its proof. Decoding takes
turns, greedily and with as many new tokens for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import click

from ...models.shapes import SHAPES, describe
from ...peers import ctranslate2_runtime, openvino
from ...peers.interface import Batch, Rows
from ...processes import HERE, Interpreter, ProcessError, call_in
from .. import options
from ..contenders.text import (
    BUNDLES,
    CTRANSLATE2,
    LOADED,
    TextContender,
    build_bundle,
    dragoman_contenders,
    draw_sources,
    load_bundle,
    load_with_memory,
    measured_preparation,
    openvino_contenders,
    peers,
    prepared_before,
)
from ..record import Record, Row, Table, table_of
from ..rounds import Entrant, Failure
from ..task import Options, Run, Task
from .decoding import TURN_SECONDS, pace_of
from .decoding import check_lengths as check_rows


def contenders(threads: int, openvino_in: Interpreter = HERE) -> list[TextContender]:
    """Return Dragoman in its precisions, then other tools."""
    from ...peers import optimum_onnx

    converted = ctranslate2_runtime.prepare_translator, ctranslate2_runtime.load_translator
    exported = optimum_onnx.prepare, optimum_onnx.load
    own = [
        replace(
            contender, prepare=partial(build_bundle, precision=bundle.precision, threads=threads)
        )
        for contender, bundle in zip(dragoman_contenders(load_bundle), BUNDLES, strict=True)
    ]
    return [
        *own,
        *peers(CTRANSLATE2, ["float32", "int8"], *converted),
        *peers("Optimum-ONNX", ["fp32", "int8"], *exported, needs_torch=True),
        *openvino_contenders(openvino.load, openvino_in),
    ]


def measure(run: Run, given: Options) -> dict[str, Any]:
    """Measure all contenders."""
    from ...models.random_checkpoint import write_random_large_model

    shape, threads = given.shape, given.threads
    chosen = run.chosen(contenders(threads, run.openvino))
    run.progress("writing the checkpoint")
    call_in(HERE, write_random_large_model, shape, run.checkpoint)
    ready: list[TextContender] = []
    built: dict[str, tuple[float, float]] = {}
    failures: list[Failure] = []
    for number, contender in enumerate(chosen):
        run.progress(f"building {contender.name}")
        path = run.directory / f"built-{number}" / "model"  # tools share files beside it
        path.parent.mkdir()
        try:
            work = partial(measured_preparation, contender.prepare, run.checkpoint, path)
            prepared, seconds, peak = call_in(contender.interpreter, work)
        except ProcessError as error:
            failures.append(Failure(contender.name, f"building: {error}"))
            continue
        built[contender.name] = seconds, peak
        load = partial(load_with_memory, load=contender.load)
        ready.append(
            replace(contender, prepare=partial(prepared_before, prepared=prepared), load=load)
        )
    common = {"new_tokens": given.new_tokens, "threads": threads, "rounds": given.rounds}
    rows, failed = decoded(run, ready, built, given.batch_sizes, shape, **common)
    return {
        "shape": describe(shape, SHAPES[shape].vocab_size),
        "batch_sizes": given.batch_sizes,
        **common,
        "contenders": rows,
        "failures": [*failures, *failed],
    }


def decoded(
    run: Run,
    ready: Sequence[TextContender],
    built: Mapping[str, tuple[float, float]],
    batch_sizes: Sequence[int],
    shape: str,
    *,
    new_tokens: int,
    threads: int,
    rounds: int,
) -> tuple[list[Row], Sequence[Failure]]:
    """Let contenders take turns; return a row of figures for each, and failures."""
    tokens = (3, SHAPES[shape].vocab_size)
    sizes = {f"batch {size}": size for size in batch_sizes}
    batches = {
        name: Batch(draw_sources(size, tokens, size, (20, 20)), new_tokens)
        for name, size in sizes.items()
    }

    def check(batch: Batch, rows: Rows) -> None:
        if batch.new_tokens:
            check_rows(batch, rows)

    results = run.take_turns(
        ready,
        {"loaded": LOADED, **batches},
        threads=[threads],
        rounds=rounds,
        turn_seconds=TURN_SECONDS,
        check=check,
    )
    rows: list[Row] = []
    for footprint in results.footprints:
        entrant = Entrant(footprint.contender, threads)
        seconds, peak = built[footprint.contender]
        loaded = results.turns["loaded"][entrant].warm_up.outcome
        paces = [
            pace_of(results.turns[name][entrant], size, new_tokens)["ms_per_step"]
            for name, size in sizes.items()
        ]
        rows.append(
            {
                "contender": footprint.contender,
                "build_seconds": round(seconds, 1),
                "build_peak_mb": round(peak),
                "disk_mb": footprint.disk_mb,
                "load_seconds": footprint.load_seconds,
                "loaded_mb": loaded[0][0],
                "peak_mb": footprint.peak_memory_mb,
                "ms_per_step": paces,
            }
        )
    return rows, results.failures


def tables(record: Record) -> Iterator[Table]:
    """Yield the table of a record."""
    columns = [
        ("", "{contender}"),
        ("build, s", "{build_seconds:.0f}"),
        ("its peak, GB", "{build_peak_gb:.1f}"),
        ("files, GB", "{disk_gb:.2f}"),
        ("load, s", "{load_seconds:.2f}"),
        ("loaded, GB", "{loaded_gb:.2f}"),
        *((f"ms/step, batch {size}", f"{{step_{size}}}") for size in record["batch_sizes"]),
    ]
    rows = [
        {
            **row,
            "build_peak_gb": row["build_peak_mb"] / 1e3,
            "disk_gb": row["disk_mb"] / 1e3,
            "loaded_gb": row["loaded_mb"] / 1e3,
            **{
                f"step_{size}": "{:.1f} ({:.1f}–{:.1f})".format(*pace)  # noqa: RUF001
                for size, pace in zip(record["batch_sizes"], row["ms_per_step"], strict=True)
            },
        }
        for row in record["contenders"]
    ]
    title = (
        f"{record['shape']}; {record['threads']} threads, {record['new_tokens']} new tokens, "
        f"{record['rounds']} rounds"
    )
    yield table_of(rows, columns, title=title)


LARGE = Task(
    name="large",
    help="Compare building, loading, memory and steps of a large model.",
    options=(
        options.option(
            "--shape",
            "Shape of the model.",
            "nllb-600m",
            click.Choice([name for name, shape in SHAPES.items() if shape.family == "m2m_100"]),
        ),
        options.batch_sizes(1, 8, what="Sources of 20 tokens decoded as one batch;"),
        options.new_tokens(),
        options.THREADS,
        options.rounds(),
        options.ONLY,
        options.OPENVINO,
    ),
    measure=measure,
    rows="contenders",
    file=lambda record, options: f"large-{options['shape']}-{record['threads']}-threads",
    tables=tables,
)
