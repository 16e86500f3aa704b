"""Checks what a model does besides one batch at a time, against ONNX Runtime on the processor.

The model is g2p-en in fp32, or engines of it in fp16; sources are random tokens.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import click
import numpy as np

from dragoman.optimize.step_inputs import random_sources
from dragoman.optimize.tensorrt.profiles import default_source_range
from dragoman.runtime import Model, load, read_bundle
from dragoman.runtime.arguments import StoppedError
from dragoman.runtime.format.manifest import Range

from ..compare.options import option
from ..compare.serving.load import ROUTE, running
from ..models.bundles import bundle_of_checkpoint, bundle_with_engines, exported, optimized_bundle
from ..processes import reason
from .device import memory_meter, steps_of
from .parts import command

Row = dict[str, Any]

SECONDS, PERIODS, CLIENTS = 4.0, 5, 32
"""Of load on a server."""
WORDS = ("dragoman", "transformer", "interpreter", "a", "encyclopaedia", "bundle", "precision")
BATCHES = 8
SIZES, SIZES_PER_ROW = 200, 20
LARGEST = 32


class Models(NamedTuple):
    """A model on a device, and the same on the processor."""

    model: Model
    processor: Model
    taken: Callable[[], float]
    """Returns the megabytes of the device's memory that were taken since the start."""

    def drawn(self, seed: object) -> tuple[list[Any], int]:
        """Draw sources of random number and lengths, and a number of new tokens."""
        manifest, generator = self.model.manifest, np.random.default_rng(seed)  # type: ignore[arg-type]
        longest = min(48, manifest.model.max_source_positions)
        lengths = generator.integers(1, longest + 1, generator.integers(1, LARGEST + 1))
        sources = random_sources(manifest, lengths.tolist(), generator)
        return sources, int(generator.integers(1, manifest.default_max_new_tokens))

    def compared(self, name: str, sources: Sequence[Any], **options: Any) -> Row:
        """Decode on both devices, and count equal outputs; an error of the model is the result."""
        row: Row = {"check": name, "outputs": len(sources), "same": 0, "error": ""}
        try:
            found = self.model.generate(sources, **options)
            expected = self.processor.generate(sources, **options)
            row["same"] = sum(f.tokens == e.tokens for f, e in zip(found, expected, strict=True))
        except Exception as error:  # any error is the result
            row["error"] = reason(error)
        return row | {"taken_mb": round(self.taken(), 1), **steps_of(self.model)}


def opened(workspace: Path, device: str, engines: bool) -> Models:
    """Export the model, and load it on both devices."""
    taken = memory_meter(device)
    neutral, bundle = bundles(workspace, engines)
    model = load(bundle, device=device, check="never")
    return Models(model, load(neutral, device="cpu", check="never"), taken)


def bundles(workspace: Path, engines: bool) -> tuple[Path, Path]:
    """Export the model, and return it with what is measured: itself, or engines in fp16."""
    neutral = exported(workspace / "neutral")
    if not engines:
        return neutral, neutral
    manifest = read_bundle(neutral).manifest
    return neutral, bundle_with_engines(
        neutral,
        workspace / "engines",
        target="tensorrt-rtx",
        precision="fp16",
        batches=(Range(1, 1, 1), Range(1, 8, LARGEST)),
        source=default_source_range(manifest.model),
        capacity=manifest.default_max_new_tokens,
    )


def threads(workspace: Path, device: str, engines: bool) -> Iterator[Row]:
    """Decode batches of new sizes in one thread, then in two at the same time."""
    models = opened(workspace, device, engines)

    def work(thread: int) -> list[Row]:
        batches = [models.drawn((thread, number)) for number in range(BATCHES)]
        return [
            models.compared(f"thread {thread}, batch {number}", sources, max_new_tokens=new_tokens)
            for number, (sources, new_tokens) in enumerate(batches)
        ]

    yield from work(0)
    with ThreadPoolExecutor(2) as pool:
        for rows in pool.map(work, (1, 2)):
            yield from rows


def sizes(workspace: Path, device: str, engines: bool) -> Iterator[Row]:
    """Decode batches of random sizes; memory should stop growing."""
    models = opened(workspace, device, engines)
    row: Row = {"check": "loaded", "outputs": 0, "same": 0, "taken_mb": round(models.taken(), 1)}
    for number in range(SIZES):
        if number % SIZES_PER_ROW == 0:
            yield row
        sources, new_tokens = models.drawn(number)
        found = models.compared(f"{number + 1} sizes", sources, max_new_tokens=new_tokens)
        row = found | {name: row[name] + found[name] for name in ("outputs", "same")}
        if row["error"]:
            break
    yield row


class _After:
    """An event that is set when it is asked for the nth time: it cancels a running call."""

    def __init__(self, times: int) -> None:
        self._left = times

    def is_set(self) -> bool:
        self._left -= 1
        return self._left <= 0


def requests(workspace: Path, device: str, engines: bool) -> Iterator[Row]:
    """Decode from a queue, with beams, sampled, streamed, cancelled, and again after that."""
    models = opened(workspace, device, engines)
    sources = [source for seed in range(4) for source in models.drawn(seed)[0]]
    few: dict[str, Any] = {"max_new_tokens": 8}
    yield models.compared("continuous batching", sources, max_batch_size=8)
    yield models.compared("4 beams", sources[:6], num_beams=4, **few)
    yield models.compared("sampled", sources[:6], do_sample=True, seed=7, top_k=5, **few)
    ends: dict[str, Row] = {"streamed": {}, "cancelled": {"cancel": _After(4)}}
    for name, options in (ends | {"timed out": {"timeout": 1e-4}}).items():
        row: Row = {"check": name, "outputs": 1, "same": 0, "error": ""}
        try:
            tokens = [t.id for t in models.model.stream(sources[0], **options) if not t.is_end]
            row["same"] = int(tokens == list(models.processor.generate(sources[:1])[0].tokens))
        except StoppedError as error:
            row["outcome"] = type(error).__name__
        except Exception as error:  # any error is the result
            row["error"] = reason(error)
        yield row
    yield models.compared("after that", sources[:8], **few)


def encoders(workspace: Path, device: str, engines: bool) -> Iterator[Row]:
    """Compute the embeddings of an encoder-only model with random weights."""
    import torch

    from dragoman.export import export_bundle
    from dragoman.reference_model import EncoderModel, HeadConfig, preset

    torch.manual_seed(0)
    none = {"target_vocab_size": 0, "decoder_layers": 0, "max_target_positions": 0}
    tiny = preset("tiny", source_vocab_size=200, target_vocab_size=200)
    config = tiny.replace(**none, head=HeadConfig(task="embedding"))
    neutral = workspace / "neutral"
    neutral.mkdir()
    export_bundle(EncoderModel(config).eval(), neutral, name="encoder")
    generator = np.random.default_rng(0)
    texts = [generator.integers(1, 200, length).tolist() for length in (1, 5, 17, 32, 48, 3)]
    expected = load(neutral, device="cpu").encode(texts)
    for precision in ("fp32", "fp16"):
        row: Row = {"check": f"embeddings, {precision}", "largest difference": "", "error": ""}
        try:
            kind = {"target": "neutral", "precision": precision}
            bundle = optimized_bundle(neutral, workspace / precision, **kind)
            with load(bundle, device=device, check="never") as model:
                difference = np.abs(model.encode(texts) - expected).max()
            row["largest difference"] = f"{difference:.2g}"
        except Exception as error:  # any error is the result
            row["error"] = reason(error)
        yield row


KERNELS, STEPS = 12, 32
"""The kernels of most time that are shown, and the steps over which they are timed."""


def kernels(workspace: Path, device: str, engines: bool) -> Iterator[Row]:
    """Time the GPU's kernels in a decoding step of the base shape in fp16, by name."""
    from torch.profiler import ProfilerActivity, profile

    from ..models.random_checkpoint import write_random_text_model

    small = device == "cpu"  # where no kernel is timed
    write_random_text_model("tiny" if small else "base", workspace / "checkpoint")
    kind = {"target": "neutral", "precision": "fp16"}
    bundle = bundle_of_checkpoint(workspace / "checkpoint", workspace / "bundle", **kind)
    activity = ProfilerActivity.CPU if small else ProfilerActivity.CUDA
    with load(bundle, device=device, check="never") as model:
        for size in (1, 8) if small else (1, 8, 32):
            sources = random_sources(model.manifest, [32] * size, np.random.default_rng(0))
            exact: dict[str, Any] = {"max_new_tokens": STEPS, "min_new_tokens": STEPS - 1}
            model.generate(sources, **exact)
            with profile(activities=[activity]) as timed:
                model.generate(sources, **exact)
            found = [(e.self_device_time_total, e.count, e.key) for e in timed.key_averages()]
            found = sorted((each for each in found if each[0] > 0), reverse=True)
            total = sum(each[0] for each in found), sum(each[1] for each in found), "all kernels"
            for time_us, count, name in (total, *found[:KERNELS]):
                row: Row = {"check": f"batch {size}: {name[:70]}"}
                row["launches a step"] = round(count / STEPS, 1)
                yield row | {"us a step": round(time_us / STEPS, 2)}


START = """
import sys
from dragoman.runtime import load
model = load(sys.argv[1], device=sys.argv[2], check="never")
(result,) = model.generate([[3, 4, 5]], max_new_tokens=4)
assert result.error is None, result.error
if sys.argv[3] == "with close":
    model.close()
"""


def starts(workspace: Path, device: str, engines: bool) -> Iterator[Row]:
    """Decode in two processes, which close the model, and in two, which do not.

    The second one should find compiled kernels in the cache, also without `close`.
    """
    _, bundle = bundles(workspace, engines)
    for kind in ("with close", "without close"):
        cache = workspace / kind
        for turn in ("first", "second"):
            started = time.perf_counter()
            process = subprocess.run(
                [sys.executable, "-c", START, str(bundle), device, kind],
                env=os.environ | {"XDG_CACHE_HOME": str(cache)},
                capture_output=True,
                text=True,
                check=False,
            )
            files = [file.stat().st_size for file in cache.rglob("*") if file.is_file()]
            yield {
                "check": f"{turn} start {kind}",
                "seconds": round(time.perf_counter() - started, 1),
                "exit status": process.returncode,
                "cached": f"{len(files)} files, {sum(files) / 1e6:.3f} MB",
                "error": process.stderr.strip()[-300:] if process.returncode else "",
            }


def serve(workspace: Path, device: str, engines: bool) -> Iterator[Row]:
    """Run a server with its defaults under load, and watch the memory."""
    bundle = exported(workspace / "neutral")
    with load(bundle, device="cpu", check="never") as model:
        expected = {word: model.generate([word])[0].text or "" for word in WORDS}
    taken, stop = memory_meter(device), threading.Event()
    backend = "onnxruntime" if device == "cpu" else "onnxruntime-cuda"
    options = ["--port", "0", "--backend", backend]
    server = [sys.executable, "-m", "dragoman", "serve", str(bundle), *options]
    outcomes: Counter[str] = Counter()
    seconds: list[float] = []

    def send(url: str, number: int) -> None:
        """Send requests, each when the last one is answered."""
        while not stop.is_set():
            number += 1
            word, started = WORDS[number % len(WORDS)], time.perf_counter()
            text = answer(url, word)
            outcomes["same text" if text == expected[word] else text] += 1
            seconds.append(time.perf_counter() - started)

    with running(server) as (url, pid), ThreadPoolExecutor(CLIENTS) as pool:
        taken = taken if device == "cuda" else memory_meter(device, pid)
        yield {"check": "started", "taken_mb": round(taken(), 1)}
        try:
            for number in range(CLIENTS):
                pool.submit(send, url, number)
            for period in range(1, PERIODS + 1):
                time.sleep(SECONDS)
                present, seconds = seconds, []
                row: Row = {"check": f"{period * SECONDS:.0f} s", "taken_mb": round(taken(), 1)}
                row["requests a second"] = round(len(present) / SECONDS, 1)
                ms = np.percentile(present or [0.0], (50, 99)) * 1e3
                row |= {"ms p50": round(ms[0], 1), "ms p99": round(ms[1], 1)}
                yield row | {"answers": dict(outcomes)}
        finally:
            stop.set()


def answer(url: str, word: str) -> str:
    """Return the text that a server answers, or its status or the error."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        connection.request("POST", ROUTE, json.dumps({"source": word}))
        response = connection.getresponse()
        text = response.read()
        if response.status != http.HTTPStatus.OK:
            return f"status {response.status}"
        return str(json.loads(text)["results"][0]["text"])
    except OSError as error:
        return reason(error)
    finally:
        connection.close()


def check(workspace: Path, what: str, device: str, engines: bool) -> Iterator[list[Row]]:
    """Run a check of `CHECKS`, and yield its rows as they come."""
    rows: list[Row] = []
    for row in CHECKS[what](workspace, device, engines):
        rows.append(row)
        yield rows


CHECKS: dict[str, Callable[[Path, str, bool], Iterator[Row]]] = {
    check.__name__: check for check in (threads, serve, requests, encoders, kernels, sizes, starts)
}

main = command(
    "behaviour-{what}",
    check,
    click.Argument(["what"], type=click.Choice([*CHECKS])),
    option("--engines", "Run engines of TensorRT-RTX.", default=False, is_flag=True),
)

if __name__ == "__main__":
    main()
