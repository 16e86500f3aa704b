"""Dragoman beside other tools: the same weights, the same inputs, interleaved in one run.

    python -m dragoman.benchmarks.compare --output benchmarks/results

Every contender decodes exactly so many new tokens greedily, the encoder included. In each round all
of them take their turn; a figure is the median over rounds, with the range beside it. The weights
are random and seeded, in the shape of Marian models, and each tool is given the same file of them.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click
from rich.console import Console

from dragoman.errors import DragomanError

from .contenders import BUNDLES, all_contenders
from .gpu.contenders import gpu_contenders
from .machine import machine
from .measuring import Results, Work, measure
from .quality import word_errors
from .report import Comparison, plot, show

PACKAGES = (
    "dragoman",
    "ctranslate2",
    "faster-whisper",
    "numpy",
    "cuda-bindings",
    "onnxruntime",
    "onnxruntime-gpu",
    "tensorrt",
    "tensorrt_rtx",
    "optimum",
    "optimum-onnx",
    "torch",
    "transformers",
)


@click.command()
@click.option(
    "--shape", type=click.Choice(["tiny", "base", "big"]), default="base", show_default=True
)
@click.option(
    "--batch-size",
    "batch_sizes",
    type=click.IntRange(min=1),
    multiple=True,
    default=(1, 8, 32),
    show_default=True,
)
@click.option("--threads", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=7, show_default=True)
@click.option("--vocab-size", type=click.IntRange(min=8), default=32000, show_default=True)
@click.option("--source-length", type=click.IntRange(1, 512), default=32, show_default=True)
@click.option("--new-tokens", type=click.IntRange(1, 511), default=64, show_default=True)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="cuda: engines and others on an NVIDIA GPU.",
)
@click.option("--only", multiple=True, help="Contenders whose name holds this; may be repeated.")
@click.option(
    "--quality/--no-quality",
    "with_quality",
    default=True,
    show_default=True,
    help="Measure the word error of g2p-en in each precision too.",
)
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
    device: str,
    only: tuple[str, ...],
    with_quality: bool,
    output: Path | None,
) -> None:
    """Measure Dragoman beside other tools on seeded random weights in a Marian model's shape."""
    work = Work(
        batch_sizes=tuple(dict.fromkeys(batch_sizes)),
        source_length=source_length,
        new_tokens=new_tokens,
        tokens=(1, vocab_size - 1),  # without the end token, the first, and padding, the last
        threads=threads,
        rounds=rounds,
    )
    load_average = os.getloadavg()[0]
    try:
        results = _measure(shape, vocab_size, work, device, only)
        measured = {m.contender for m in results.measurements}
        bundles = [bundle for bundle in BUNDLES if bundle[0] in measured and with_quality]
        quality = word_errors(bundles, threads) if bundles else {}
    except DragomanError as error:
        raise click.ClickException(str(error)) from error
    comparison = Comparison(
        shape=f"Marian {shape}, vocabulary {vocab_size}, random weights",
        source_length=source_length,
        new_tokens=new_tokens,
        threads=threads,
        rounds=rounds,
        measurements=tuple(results.measurements),
        footprints=tuple(results.footprints),
        word_error=quality,
        failures=tuple(results.failures),
        machine=_device(device),
        load_average=load_average,
        versions=versions(),
        date=datetime.now(UTC).date().isoformat(),
        command=" ".join(["python -m dragoman.benchmarks.compare", *sys.argv[1:]]),
    )
    show(comparison)
    if output is not None and comparison.measurements:
        output.mkdir(parents=True, exist_ok=True)
        name = f"cpu-{shape}-{threads}-threads" if device == "cpu" else f"gpu-{shape}"
        (output / f"{name}.json").write_text(json.dumps(asdict(comparison), indent=1) + "\n")
        plot(comparison, output / f"{name}.png")
    if not comparison.measurements:
        raise click.ClickException("nothing could be measured")


def _measure(shape: str, vocab_size: int, work: Work, device: str, only: Iterable[str]) -> Results:
    # Imported here: the processes of the contenders import this module, and do without torch.
    from .peers.marian import marian_shape, write_random_marian

    contenders = all_contenders() if device == "cpu" else gpu_contenders()
    names = [contender.name for contender in contenders]
    chosen = {n for n in names if not only or any(o.lower() in n.lower() for o in only)}
    if not chosen:
        raise DragomanError(f"--only: no such contender; there are {', '.join(names)}")
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as directory, console.status("") as status:
        checkpoint = Path(directory) / "marian"
        write_random_marian(marian_shape(shape, vocab_size=vocab_size), checkpoint, seed=1)
        return measure(
            contenders,
            chosen,
            work,
            checkpoint=checkpoint,
            directory=Path(directory),
            progress=status.update,
        )


def _device(device: str) -> str:
    if device == "cpu":
        return machine()
    from dragoman.runtime.backends.cuda import find_gpu

    gpu = find_gpu()
    return f"{gpu.name}, compute capability {gpu.compute_capability}; {machine()}"


def versions() -> dict[str, str]:
    """Of the packages that take part, where installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    main()
