"""Dragoman beside other tools: the same weights, the same inputs, interleaved in one run.

    python -m dragoman.benchmarks.compare --output benchmarks/results

Every contender decodes the same number of tokens, the encoder included. In each round all of them
take their turn; a figure is the median over rounds, with the range beside it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from .contenders import Contender, Worker, load_ctranslate2, load_dragoman
from .machine import machine

if TYPE_CHECKING:
    from dragoman.reference_model import Transformer

BASELINE = "CTranslate2 fp32"


@dataclass(frozen=True)
class Measurement:
    """Of one contender at one batch size.

    Attributes:
        ms_per_step: a whole call over the number of new tokens: median, lowest, highest
        ratio: the baseline's median over this one's: above 1 is faster than the baseline
        identical: sequences equal to Dragoman's fp32, of those in the batch
    """

    contender: str
    batch_size: int
    ms_per_step: tuple[float, float, float]
    tokens_per_second: float
    ratio: float
    identical: int


@dataclass(frozen=True)
class Footprint:
    contender: str
    load_seconds: float
    peak_memory_mb: float
    disk_mb: float


@dataclass(frozen=True)
class Comparison:
    shape: str
    source_length: int
    new_tokens: int
    threads: int
    rounds: int
    measurements: tuple[Measurement, ...]
    footprints: tuple[Footprint, ...]
    machine: str
    load_average: float
    versions: dict[str, str]
    date: str
    command: str


def prepare(model: Transformer, directory: Path) -> list[Contender]:
    """Write the model in the form of each contender."""
    # Imported here: the processes of the contenders import this module, and do without torch.
    from dragoman.export import export_bundle

    from .peers.ctranslate2 import convert

    bundle = directory / "dragoman"
    bundle.mkdir()
    export_bundle(model, bundle, name="random")
    contenders = [Contender("Dragoman fp32", bundle, load_dragoman)]
    for name, quantization in (("fp32", None), ("int8", "int8")):
        path = directory / f"ctranslate2-{name}"
        convert(model, path, quantization=quantization)
        contenders.append(Contender(f"CTranslate2 {name}", path, load_ctranslate2))
    return contenders


def measure(
    contenders: list[Contender],
    *,
    vocab_size: int,
    batch_sizes: tuple[int, ...],
    source_length: int,
    new_tokens: int,
    threads: int,
    rounds: int,
) -> tuple[list[Measurement], list[Footprint]]:
    """Let the contenders take turns. One round of each batch size before is not counted."""
    generator = np.random.default_rng(0)
    workers = [Worker(contender, threads) for contender in contenders]
    measurements: list[Measurement] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring", total=len(batch_sizes) * (rounds + 1) * len(workers))
        for size in batch_sizes:
            sources = generator.integers(3, vocab_size, (size, source_length)).tolist()
            seconds: dict[str, list[float]] = {c.name: [] for c in contenders}
            outputs: dict[str, list[list[int]]] = {}
            for number in range(rounds + 1):
                for worker in workers:
                    tokens, taken = worker.generate(sources, new_tokens)
                    if {len(row) for row in tokens} != {new_tokens}:
                        raise RuntimeError(f"{worker.contender.name} ended early")
                    outputs[worker.contender.name] = tokens
                    if number > 0:
                        seconds[worker.contender.name].append(taken)
                    progress.advance(task)
            measurements += _summaries(seconds, outputs, size, new_tokens)
    footprints = [
        Footprint(
            worker.contender.name,
            round(worker.load_seconds, 3),
            round(worker.close(), 1),
            round(worker.contender.disk_mb, 1),
        )
        for worker in workers
    ]
    return measurements, footprints


def _summaries(
    seconds: dict[str, list[float]],
    outputs: dict[str, list[list[int]]],
    batch_size: int,
    new_tokens: int,
) -> list[Measurement]:
    ours = next(iter(outputs.values()))
    baseline = float(np.median(seconds[BASELINE]))
    return [
        Measurement(
            contender=name,
            batch_size=batch_size,
            ms_per_step=_ms_per_step(taken, new_tokens),
            tokens_per_second=round(batch_size * new_tokens / float(np.median(taken)), 1),
            ratio=round(baseline / float(np.median(taken)), 3),
            identical=sum(a == b for a, b in zip(ours, outputs[name], strict=True)),
        )
        for name, taken in seconds.items()
    ]


def _ms_per_step(seconds: list[float], new_tokens: int) -> tuple[float, float, float]:
    median, lowest, highest = (
        round(float(f(seconds)) / new_tokens * 1e3, 3) for f in (np.median, np.min, np.max)
    )
    return median, lowest, highest


@click.command()
@click.option(
    "--shape", type=click.Choice(["tiny", "base", "big"]), default="base", show_default=True
)
@click.option(
    "--batch-size", "batch_sizes", type=int, multiple=True, default=(1, 8, 32), show_default=True
)
@click.option("--threads", default=2, show_default=True)
@click.option("--rounds", default=7, show_default=True)
@click.option("--vocab-size", default=32000, show_default=True)
@click.option("--source-length", default=32, show_default=True)
@click.option("--new-tokens", default=64, show_default=True)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="A folder for the figures as JSON and as a plot.",
)
def main(
    shape: str,
    batch_sizes: tuple[int, ...],
    threads: int,
    rounds: int,
    vocab_size: int,
    source_length: int,
    new_tokens: int,
    output: Path | None,
) -> None:
    """Measure Dragoman beside CTranslate2 on seeded random weights of a preset's shape."""
    from dragoman.reference_model import preset

    from .random_model import random_model

    config = preset(
        shape, source_vocab_size=vocab_size, target_vocab_size=vocab_size, tie_source_target=True
    )
    load_average = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as directory:
        contenders = prepare(random_model(config, seed=1), Path(directory))
        measurements, footprints = measure(
            contenders,
            vocab_size=vocab_size,
            batch_sizes=batch_sizes,
            source_length=source_length,
            new_tokens=new_tokens,
            threads=threads,
            rounds=rounds,
        )
    comparison = Comparison(
        shape=f"{shape}, vocabulary {vocab_size}, tied, fp32 weights",
        source_length=source_length,
        new_tokens=new_tokens,
        threads=threads,
        rounds=rounds,
        measurements=tuple(measurements),
        footprints=tuple(footprints),
        machine=machine(),
        load_average=load_average,
        versions={p: version(p) for p in ("dragoman", "onnxruntime", "ctranslate2", "numpy")},
        date=datetime.now(UTC).date().isoformat(),
        command=" ".join(["python -m dragoman.benchmarks.compare", *sys.argv[1:]]),
    )
    show(comparison)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        name = f"cpu-{shape}-{threads}-threads"
        (output / f"{name}.json").write_text(json.dumps(asdict(comparison), indent=1) + "\n")
        plot(comparison, output / f"{name}.png")


def show(comparison: Comparison) -> None:
    table = Table(
        title=f"{comparison.shape}; source {comparison.source_length}, {comparison.new_tokens} new "
        f"tokens, {comparison.threads} threads, {comparison.rounds} rounds",
        title_justify="left",
    )
    for heading in (
        "",
        "batch",
        "ms/step",
        "lowest - highest",
        "tokens/s",
        f"x {BASELINE}",
        "same",
    ):
        table.add_column(heading, justify="right")
    for m in comparison.measurements:
        median, lowest, highest = m.ms_per_step
        table.add_row(
            m.contender,
            str(m.batch_size),
            f"{median:.2f}",
            f"{lowest:.2f} - {highest:.2f}",
            f"{m.tokens_per_second:,.0f}",
            f"{m.ratio:.2f}",
            f"{m.identical}/{m.batch_size}",
        )
    console = Console()
    console.print(table)
    for f in comparison.footprints:
        console.print(
            f"{f.contender}: load {f.load_seconds:.2f} s, peak memory {f.peak_memory_mb:.0f} MB, "
            f"disk {f.disk_mb:.0f} MB"
        )
    console.print(comparison.machine)
    console.print(comparison.command, soft_wrap=True)


def plot(comparison: Comparison, path: Path) -> None:
    """Tokens per second of each contender, a group of bars for each batch size."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.add_subplot()
    names = list(dict.fromkeys(m.contender for m in comparison.measurements))
    sizes = list(dict.fromkeys(m.batch_size for m in comparison.measurements))
    width = 0.8 / len(names)
    for index, name in enumerate(names):
        heights = [m.tokens_per_second for m in comparison.measurements if m.contender == name]
        x = np.arange(len(sizes)) + (index - (len(names) - 1) / 2) * width
        axes.bar_label(axes.bar(x, heights, width, label=name), fmt="{:,.0f}", fontsize=8)
    axes.set_xticks(range(len(sizes)), [f"batch {size}" for size in sizes])
    axes.set_ylabel("new tokens per second")
    axes.set_title(f"{comparison.shape}, {comparison.threads} threads", fontsize=10)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
