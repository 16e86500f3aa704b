"""Divides the time of a decoding step into kernels, gaps between kernels, and the host.

For Dragoman's backends, two more times are measured without a profiler: the host's time to enqueue
a step, and the time of a step if tokens are not read between steps. The shorter one is hidden
behind the longer.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import click
import numpy as np

from dragoman.runtime import Model, load
from dragoman.runtime.backends.cuda.state import DeviceState
from dragoman.runtime.decoding.batching import as_batch

from ..compare.rounds import prepare
from ..compare.tasks.decoding import Workload
from ..compare.tasks.gpu_contenders import BackendContender, engine_sizes, gpu_contenders
from ..compare.tasks.text_contenders import REFERENCE, TextContender, generator
from ..models.shapes import describe
from ..peers.interface import Batch, Generate
from ..processes import HERE, call_in
from .device import NEW_TOKENS, SOURCE_LENGTH
from .parts import one_line

SHAPE, VOCABULARY = "big", 32000
BATCH_SIZES = (1, 32)
RUNS = 5
WARM_UPS = 2

COLUMNS = (
    *("ms/step", "kernels", "kernels per step", "launch gaps", "host"),
    *("enqueueing", "back-to-back steps", "error"),
)

LAUNCH_GAP = 20.0
"""The longest idle time, in microseconds, that is counted as a gap between two kernels that were
both enqueued already. If the device is idle for longer, the host had not enqueued the next one."""


class Activity(NamedTuple):
    """A kernel or a copy on the device: when it started and ended, in microseconds."""

    start: float
    end: float


def activities_of(call: Callable[[], object]) -> list[Activity]:
    """Record the device activities of a call.

    Raises:
        ImportError: PyTorch is not installed.
        RuntimeError: PyTorch finds no GPU.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    if not torch.cuda.is_available():
        raise RuntimeError("PyTorch, whose profiler times the kernels, finds no GPU")
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    return [
        Activity(event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.device_type.name == "CUDA"
    ]


def split(activities: Iterable[Activity], ms_per_step: float, steps: int) -> dict[str, float]:
    """Divide the time of a decoding step, in milliseconds.

    Args:
        activities: all device activities of one call
        ms_per_step: time per step of the same call without the profiler
        steps: number of steps of the call

    Returns:
        `kernels`: the device works; `launch gaps`: it goes from one kernel to the next; `host`: the
        rest, in which it waits for the host; and the number of `kernels per step`
    """
    busy = gaps = 0.0
    count, end = 0, None
    for activity in sorted(activities):
        count += 1
        if end is None:
            end = activity.start
        idle = activity.start - end
        gaps += idle if 0 < idle <= LAUNCH_GAP else 0.0
        busy += max(0.0, activity.end - max(end, activity.start))
        end = max(end, activity.end)
    kernels, launching = busy / steps / 1e3, gaps / steps / 1e3
    return {
        "kernels": round(kernels, 4),
        "kernels per step": round(count / steps, 1),
        "launch gaps": round(launching, 4),
        "host": round(max(0.0, ms_per_step - kernels - launching), 4),
    }


@click.command()
@click.option("--output", type=click.Path(path_type=Path), required=True)
@click.option("--only", multiple=True, default=(" fp16", " float16"), help="Parts of names.")
def main(output: Path, only: tuple[str, ...]) -> None:
    """Write time_split.json after every contender."""
    from ..models.random_checkpoint import write_random_text_model
    from . import time_split  # its functions are importable in other processes, unlike a script's

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
                rows += call_in(HERE, time_split.measure, contender, prepared)
            except Exception as error:  # any error belongs in the row
                rows.append({**_empty_row(contender, 0), "error": one_line(error)})
            (output / "time_split.json").write_text(json.dumps(rows, indent=1) + "\n")


def measure(contender: TextContender, prepared: Path) -> list[dict[str, Any]]:
    """Measure a contender, with a row for each batch size."""
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
        except Exception as error:  # other figures do not need the profiler
            row["error"] = one_line(error)
        rows.append(row)
    return rows


def _workload() -> Workload:
    return Workload(BATCH_SIZES, SOURCE_LENGTH, NEW_TOKENS, (1, VOCABULARY - 1), (1,), RUNS)


def stream_times(model: Model, batch: Batch) -> dict[str, float]:
    """Measure the host's time to enqueue a step, and the time of a step in a stream, in ms.

    Returns:
        the times by column; empty for a backend without a stream
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
    """Measure the median time of a call after the warm-ups, in milliseconds."""
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
