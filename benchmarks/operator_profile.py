"""Where the time of a decoder step and of the encoder goes, operator by operator.

    python -m dragoman.benchmarks.operator_profile bundles/g2p-en --batch-size 32

Measured by ONNX Runtime's own profiler, on random tokens. Profiling takes time by itself: the
shares mean more than the milliseconds.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import onnxruntime
from rich.console import Console
from rich.table import Table

from dragoman.optimize.random_sources import random_sources
from dragoman.runtime import read_bundle
from dragoman.runtime.backends.onnxruntime.cpu.backend import OnnxRuntimeBackend
from dragoman.runtime.decoding.batching import as_batch

PRODUCTS = frozenset(
    {
        "DynamicQuantizeMatMul",
        "FusedMatMul",
        "Gemm",
        "MatMul",
        "MatMulIntegerToFloat",
        "MatMulNBits",
        "QGemm",
    }
)
"""What no other arrangement of a graph can avoid: the floor, as far as these kernels go."""


class OperatorTime(NamedTuple):
    """Of all nodes of one operator in one run."""

    operator: str
    nodes: float
    milliseconds: float


class ProfiledBackend(OnnxRuntimeBackend):
    """Sessions that write down what each node takes."""

    def _options(self, threads: int | None, *, spin: bool) -> onnxruntime.SessionOptions:
        options = super()._options(threads, spin=spin)
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(tempfile.gettempdir()) / "dragoman-profile")
        return options


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--batch-size", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--source-length", type=click.IntRange(min=1), default=32, show_default=True)
@click.option("--steps", type=click.IntRange(min=2), default=32, show_default=True)
def main(bundle: Path, batch_size: int, threads: int, source_length: int, steps: int) -> None:
    """Profile BUNDLE's graphs by operator."""
    read = read_bundle(bundle)
    facts = read.manifest.model
    backend = ProfiledBackend(read, threads=threads)
    length = min(source_length, facts.max_source_positions)
    generator = np.random.default_rng(0)
    source, mask = as_batch(random_sources(read.manifest, [length] * batch_size, generator), facts)
    prompt = np.full((batch_size, 1), facts.start_token_id)
    capacity = min(steps, facts.max_target_positions)
    runs = 3
    for _ in range(runs):
        state = backend.start(source, mask, prompt, capacity)
        for _ in range(capacity):
            state.step()
    console = Console()
    for name, session, count in (
        ("decoder step", backend.decoder, runs * capacity),
        ("encoder", backend.encoder, runs),
    ):
        times = operator_times(Path(session.end_profiling()), count)
        console.print(_table(f"{name}, batch {batch_size}, {threads} threads", times))


def operator_times(file: Path, runs: int) -> list[OperatorTime]:
    """The times in a profile of so many runs, the longest first; the file is removed."""
    spent: Counter[str] = Counter()
    nodes: Counter[str] = Counter()
    for event in json.loads(file.read_text(encoding="utf-8")):
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            operator = event["args"]["op_name"]
            spent[operator] += event["dur"]
            nodes[operator] += 1
    file.unlink()
    return [
        OperatorTime(operator, nodes[operator] / runs, microseconds / runs / 1e3)
        for operator, microseconds in spent.most_common()
    ]


def _table(title: str, times: list[OperatorTime]) -> Table:
    total = sum(time.milliseconds for time in times)
    products = sum(time.milliseconds for time in times if time.operator in PRODUCTS)
    table = Table(
        title=f"{title}: {total:.2f} ms, of which products {products:.2f} ({products / total:.0%})",
        title_justify="left",
    )
    for heading in ("operator", "nodes", "ms", "share"):
        table.add_column(heading, justify="left" if heading == "operator" else "right")
    for time in times[:12]:
        share = time.milliseconds / total
        table.add_row(time.operator, f"{time.nodes:g}", f"{time.milliseconds:.3f}", f"{share:.1%}")
    return table


if __name__ == "__main__":
    main()
