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

import numpy as np

from ...models.shapes import SHAPES, WHISPERS, describe
from ...peers import ctranslate2_runtime, openvino, whisper
from ...peers.interface import Batch
from ...processes import HERE, Interpreter, ProcessError, call_in
from ...processes.memory import memory_mb
from .. import options
from ..contenders import speech, text
from ..record import Record, Row, Table, ranged, table_of
from ..rounds import Contender, Entrant, Failure, Turns, Worker, spread
from ..task import Options, Run, Task
from .decoding import TURN_SECONDS, check_lengths, pace_of

AnyContender = Contender[Any, Any]


def contenders(threads: int, openvino_in: Interpreter = HERE) -> list[AnyContender]:
    """Return Dragoman in its precisions, then other tools."""
    from ...peers import optimum_onnx

    converted = ctranslate2_runtime.prepare_translator, ctranslate2_runtime.load_translator
    exported = optimum_onnx.prepare, optimum_onnx.load
    return [
        *_built(text.dragoman_contenders(text.load_bundle), threads),
        *text.peers(text.CTRANSLATE2, ["float32", "int8"], *converted),
        *text.peers("Optimum-ONNX", ["fp32", "int8"], *exported, needs_torch=True),
        *text.openvino_contenders(openvino.load, openvino_in),
    ]


def whisper_contenders(threads: int) -> list[AnyContender]:
    """Return Dragoman in its precisions, then other tools that transcribe."""
    adapt = speech.load_transcriber
    tools = partial(text.peers, adapt=adapt)
    converted = ctranslate2_runtime.prepare_whisper, ctranslate2_runtime.load_faster_whisper
    in_ggml = whisper.prepare_whisper_cpp, whisper.load_whisper_cpp
    ours = text.dragoman_contenders(partial(adapt, load=speech.load_bundle))
    return [
        *_built(ours, threads),
        *tools(speech.FASTER_WHISPER, ["float32", "int8"], *converted),
        *tools(speech.WHISPER_CPP, ["f16", "q8_0"], *in_ggml),
    ]


def _built(ours: list[AnyContender], threads: int) -> Iterator[AnyContender]:
    for contender in ours:
        build = partial(text.build_bundle, precision=contender.precision, threads=threads)
        yield replace(contender, prepare=build)


def measure(run: Run, given: Options) -> dict[str, Any]:
    """Measure all contenders."""
    from ...models.random_checkpoint import write_random_large_model

    threads, new_tokens = given.threads, given.new_tokens
    hears = given.shape in WHISPERS
    vocab_size = 0 if hears else SHAPES[given.shape].vocab_size
    everyone = whisper_contenders(threads) if hears else contenders(threads, run.openvino)
    chosen = run.chosen(everyone)
    run.progress("writing the checkpoint")
    call_in(HERE, write_random_large_model, given.shape, run.checkpoint)
    ready: list[AnyContender] = []
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
    items: dict[str, Any] = {
        f"batch {size}": Batch(text.draw_sources(size, (3, vocab_size), size, (20, 20)), new_tokens)
        for size in given.batch_sizes
        if not hears
    }
    loaded: dict[str, float] = {}

    def start(contender: AnyContender, directory: Path, threads: int) -> Worker[Any, Any]:
        worker = Worker(contender, directory, threads)
        loaded[contender.name] = memory_mb(worker.pid)
        return worker

    ways: dict[str, Any] = {"rounds": given.rounds, "start": start}
    if hears:
        items = {"a window": [_noise(run.directory / "noise.wav")]}
    else:
        ways |= {"turn_seconds": TURN_SECONDS, "check": check_lengths}
    results = run.take_turns(ready, items, threads=[threads], **ways)
    rows: list[Row] = []
    for footprint in results.footprints:
        entrant = Entrant(footprint.contender, threads)
        seconds, peak = built[footprint.contender]
        turns = {name: results.turns[name][entrant] for name in items}
        rows.append(
            {
                "contender": footprint.contender,
                "build_seconds": round(seconds, 1),
                "build_peak_mb": round(peak),
                "disk_mb": footprint.disk_mb,
                "load_seconds": footprint.load_seconds,
                "loaded_mb": round(loaded[footprint.contender]),
                "peak_mb": footprint.peak_memory_mb,
                **(heard(turns["a window"]) if hears else {}),
                "ms_per_step": [
                    pace_of(turns[name], len(batch.sources), new_tokens)["ms_per_step"]
                    for name, batch in items.items()
                    if not hears
                ],
            }
        )
    return {
        "shape": describe(given.shape, vocab_size),
        "batch_sizes": () if hears else given.batch_sizes,
        "new_tokens": new_tokens,
        "threads": threads,
        "rounds": given.rounds,
        "contenders": rows,
        "failures": [*failures, *results.failures],
    }


def _noise(path: Path) -> Path:
    """Write a window of noise, the same for all tools."""
    import soundfile

    soundfile.write(path, 0.1 * np.random.default_rng(0).standard_normal(30 * 16000), 16000)
    return path


def heard(turns: Turns[list[speech.Transcript]]) -> Row:
    """Return the times of a window; of its stages, None if the tool does not time them."""
    transcripts = [transcript for turn in turns.counted for transcript in turn.outcome]
    stages = [transcript.stages for transcript in transcripts if transcript.stages is not None]
    encoder = [own.encoder for own in stages]
    decoder = [1e3 * own.decoder / own.tokens for own in stages]
    return {
        "seconds": spread([transcript.seconds for transcript in transcripts]),
        "encoder_seconds": spread(encoder) if stages else None,
        "ms_per_token": spread(decoder) if stages else None,
    }


HEARD = (
    ("a window of 30 s, s", "{seconds[0]:.1f}"),
    ("its encoder, s", "{encoder_seconds[0]:.1f}"),
    ("ms/token", "{ms_per_token[0]:.1f}"),
)


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
        *(HEARD if not sizes else ()),
    ]
    in_gb = "build_peak", "disk", "loaded"
    rows = [
        row
        | {name: row[f"{name}_mb"] / 1e3 for name in in_gb}
        | {"paces": [ranged(pace, 1) for pace in row["ms_per_step"]]}
        for row in record["contenders"]
    ]
    title = "{shape}; {threads} threads, {rounds} rounds"
    title += ", {new_tokens} new tokens" if sizes else ""
    yield table_of(rows, columns, title=title.format_map(record))


LARGE_SHAPES = [*(name for name in SHAPES if name not in options.TEXT_SHAPES), *WHISPERS]

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
