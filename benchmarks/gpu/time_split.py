"""Where the time of a decoding step goes, beyond what reading its weights and caches must take.

Kernels are timed by CUPTI, which PyTorch's profiler asks for whatever program launches them, those
in CUDA graphs too. Of our own backends it is also measured, without a profiler, how long the host
takes to put a step into the stream, and how long steps take that follow each other without anybody
reading their tokens: whichever is shorter hides behind the other.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import click
import numpy as np

from dragoman.benchmarks.contenders import REFERENCE, Contender, Generate, generator
from dragoman.benchmarks.gpu.contenders import backend_of, gpu_contenders
from dragoman.benchmarks.gpu.facts import NEW_TOKENS, SOURCE_LENGTH
from dragoman.benchmarks.measuring import Work
from dragoman.benchmarks.workers import prepare
from dragoman.runtime import Model, load
from dragoman.runtime.backends.cuda.state import DeviceState
from dragoman.runtime.decoding.batching import as_batch

SHAPE, VOCABULARY = "big", 32000
BATCH_SIZES = (1, 32)
RUNS = 5
LAUNCH_GAP = 20.0
"""Microseconds that the device is idle at most between two kernels that were both waiting for it;
where it is idle for longer the host had not asked for the next."""

COLUMNS = (
    *("ms/step", "kernels", "kernels per step", "launch gaps", "host"),
    *("putting it into the stream", "steps in a row", "why not more"),
)


class Activity(NamedTuple):
    """Of a kernel or a copy on the device: when, in microseconds."""

    start: float
    end: float


@click.command()
@click.option("--output", type=click.Path(path_type=Path), required=True)
@click.option("--only", multiple=True, default=("fp16", "float16"), help="Contenders' names.")
def main(output: Path, only: tuple[str, ...]) -> None:
    """Write time_split.json, anew after every contender."""
    from dragoman.benchmarks.peers.marian import marian_shape, write_random_marian

    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = Path(directory) / "marian"
        write_random_marian(marian_shape(SHAPE, vocab_size=VOCABULARY), checkpoint, seed=1)
        for number, contender in enumerate(gpu_contenders()):
            if contender.name == REFERENCE or not any(name in contender.name for name in only):
                continue
            try:
                prepared = prepare(contender, checkpoint, Path(directory) / str(number))
                rows += _in_a_process(contender, prepared)
            except Exception as error:  # whatever it is, it is the answer
                why = f"{type(error).__name__}: {' '.join(str(error).split())}"
                rows.append({**_empty(contender, 0), "why not more": why})
            (output / "time_split.json").write_text(json.dumps(rows, indent=1) + "\n")


def split(activities: Iterable[Activity], ms_per_step: float, steps: int) -> dict[str, float]:
    """The time of a step of a call, as milliseconds of each kind.

    Args:
        activities: all that the device did in one call
        ms_per_step: of the same call, when nobody records it
        steps: of the call

    Returns:
        `kernels`: the device works; `launch gaps`: it goes from one kernel to the next; `host`:
        the rest, in which it waits to be told, or the host works after it
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


def beyond_the_floor(row: dict[str, Any], floor: float) -> dict[str, Any]:
    """A row with the time that reading alone must take, and what kernels take beyond it; nothing
    where either is not known."""
    known = floor and row["kernels"] != ""
    return {
        **row,
        "floor": round(floor, 4) if floor else "",
        "kernels beyond the floor": round(row["kernels"] - floor, 4) if known else "",
    }


def activities_of(call: Callable[[], object]) -> list[Activity]:
    """What the device does in a call.

    Raises:
        ImportError: PyTorch is not installed.
        RuntimeError: it sees no GPU.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    if not torch.cuda.is_available():
        raise RuntimeError("PyTorch, whose profiler times kernels, sees no GPU")
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    return [
        Activity(event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.device_type.name == "CUDA"
    ]


def stream_times(model: Model, sources: list[list[int]], steps: int) -> dict[str, float]:
    """Milliseconds for the host to put a step into the stream, and for a step of those that follow
    each other there; nothing of a backend that has no stream."""
    facts = model.manifest.model
    source, mask = as_batch(sources, facts)
    prompt = np.full((len(sources), 1), facts.start_token_id)
    putting, passing = [], []
    for _ in range(RUNS + 1):
        state = model.backend.start(source, mask, prompt, steps)
        if not isinstance(state, DeviceState):
            state.close()
            return {}
        started = time.perf_counter()
        state.put(steps)
        put = time.perf_counter()
        state.wait()
        putting.append(put - started)
        passing.append(time.perf_counter() - started)
        state.close()
    return {  # of the first, kernels are compiled and graphs captured
        "putting it into the stream": round(median(putting[1:]) / steps * 1e3, 4),
        "steps in a row": round(median(passing[1:]) / steps * 1e3, 4),
    }


def measured(contender: Contender, prepared: Path) -> list[dict[str, Any]]:
    """A row for each batch size."""
    backend = backend_of(contender)
    model = load(prepared, backend=backend) if backend else None
    generate = generator(model) if model else contender.load(prepared, 1)
    work = Work(BATCH_SIZES, SOURCE_LENGTH, NEW_TOKENS, (1, VOCABULARY - 1), 1, RUNS)
    rows = []
    for size in BATCH_SIZES:
        sources = work.sources(size)
        row = _empty(contender, size)
        row["ms/step"] = round(_milliseconds(generate, sources) / NEW_TOKENS, 4)
        if model:
            row |= stream_times(model, sources, NEW_TOKENS)
        try:
            done = activities_of(lambda sources=sources: generate(sources, NEW_TOKENS))  # type: ignore[misc]
            row |= split(done, row["ms/step"], NEW_TOKENS)
        except Exception as error:  # no profiler here: what else was measured stands
            row["why not more"] = f"{type(error).__name__}: {' '.join(str(error).split())}"
        rows.append(row)
    return rows


def _in_a_process(contender: Contender, prepared: Path) -> list[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as executor:
        return executor.submit(measured, contender, prepared).result()


def _milliseconds(generate: Generate, sources: list[list[int]]) -> float:
    """Of a call, the median; two before them are not counted."""
    spent = []
    for _ in range(RUNS + 2):
        started = time.perf_counter()
        generate(sources, NEW_TOKENS)
        spent.append(time.perf_counter() - started)
    return median(spent[2:]) * 1e3


def _empty(contender: Contender, size: int) -> dict[str, Any]:
    shape = f"Marian {SHAPE}, vocabulary {VOCABULARY}, random weights"
    known = {"contender": contender.name, "batch": size, "shape": shape}
    return {**known, **dict.fromkeys(COLUMNS, "")}


if __name__ == "__main__":
    main()
