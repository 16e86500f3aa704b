"""Where the time of a decoding step goes: kernels, gaps between them, the host.

For Dragoman's backends two more times are measured, without a profiler: how long the host takes to
enqueue a step, and how long a step takes when steps follow each other without their tokens being
read. The shorter of the two is hidden behind the longer.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

from dragoman.runtime import Model, load
from dragoman.runtime.backends.cuda.state import DeviceState
from dragoman.runtime.decoding.batching import as_batch

from ..harness import in_own_process, prepare
from ..models.shapes import describe
from ..peers.interface import Batch, Generate
from ..text.contenders import REFERENCE, TextContender, generator
from ..text.workload import Workload
from .contenders import BackendContender, engine_sizes, gpu_contenders
from .errors import one_line
from .floor import NEW_TOKENS, SOURCE_LENGTH
from .kernel_times import activities_of, split

SHAPE, VOCABULARY = "big", 32000
BATCH_SIZES = (1, 32)
RUNS = 5
WARM_UPS = 2

COLUMNS = (
    *("ms/step", "kernels", "kernels per step", "launch gaps", "host"),
    *("enqueueing", "back-to-back steps", "error"),
)


@click.command()
@click.option("--output", type=click.Path(path_type=Path), required=True)
@click.option("--only", multiple=True, default=(" fp16", " float16"), help="Parts of names.")
def main(output: Path, only: tuple[str, ...]) -> None:
    """Write time_split.json; it is rewritten after every contender."""
    from ..models.random_checkpoint import write_random_text_model

    workload = _workload()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as workspace:
        checkpoint = Path(workspace) / "checkpoint"
        write_random_text_model(SHAPE, checkpoint, vocab_size=VOCABULARY)
        for number, contender in enumerate(gpu_contenders(engine_sizes(workload))):
            if contender.name == REFERENCE or not any(name in contender.name for name in only):
                continue
            try:
                prepared = prepare(contender, checkpoint, Path(workspace) / str(number))
                rows += in_own_process(measure, contender, prepared)
            except Exception as error:  # whatever it is, it belongs in the row
                rows.append({**_empty_row(contender, 0), "error": one_line(error)})
            (output / "time_split.json").write_text(json.dumps(rows, indent=1) + "\n")


def measure(contender: TextContender, prepared: Path) -> list[dict[str, Any]]:
    """A row for each batch size."""
    model: Model | None = None
    if isinstance(contender, BackendContender):
        model = load(prepared, backend=contender.backend)
    generate = generator(model) if model else contender.load(prepared, 1)
    workload = _workload()
    rows = []
    for size in BATCH_SIZES:
        batch = workload.batch(size)
        row = _empty_row(contender, size)
        row["ms/step"] = round(_milliseconds(generate, batch) / NEW_TOKENS, 4)
        if model:
            row |= stream_times(model, batch)
        try:
            activities = activities_of(lambda batch=batch: generate(batch))  # type: ignore[misc]
            row |= split(activities, row["ms/step"], NEW_TOKENS)
        except Exception as error:  # without a profiler the other figures still hold
            row["error"] = one_line(error)
        rows.append(row)
    return rows


def _workload() -> Workload:
    return Workload(BATCH_SIZES, SOURCE_LENGTH, NEW_TOKENS, (1, VOCABULARY - 1), (1,), RUNS)


def stream_times(model: Model, batch: Batch) -> dict[str, float]:
    """Milliseconds that the host takes to enqueue a step, and that a step takes when steps follow
    each other in the stream; empty for a backend without a stream.
    """
    spec, steps = model.manifest.model, batch.new_tokens
    source, mask = as_batch(batch.sources, spec)
    prompt = np.full((len(batch.sources), 1), spec.start_token_id)
    enqueueing, passing = [], []
    for _ in range(RUNS + 1):
        state = model.backend.start(source, mask, prompt, steps)
        if not isinstance(state, DeviceState):
            state.close()
            return {}
        started = time.perf_counter()
        state.put(steps)
        enqueued_at = time.perf_counter()
        state.wait()
        enqueueing.append(enqueued_at - started)
        passing.append(time.perf_counter() - started)
        state.close()
    return {  # the first run compiles kernels and captures graphs
        "enqueueing": round(median(enqueueing[1:]) / steps * 1e3, 4),
        "back-to-back steps": round(median(passing[1:]) / steps * 1e3, 4),
    }


def _milliseconds(generate: Generate, batch: Batch) -> float:
    """The median time of a call, after the warm-ups."""
    seconds = []
    for _ in range(WARM_UPS + RUNS):
        started = time.perf_counter()
        generate(batch)
        seconds.append(time.perf_counter() - started)
    return median(seconds[WARM_UPS:]) * 1e3


def _empty_row(contender: TextContender, batch_size: int) -> dict[str, Any]:
    known = {
        "contender": contender.name,
        "batch": batch_size,
        "shape": describe(SHAPE, VOCABULARY),
    }
    return known | dict.fromkeys(COLUMNS, "")


if __name__ == "__main__":
    main()
