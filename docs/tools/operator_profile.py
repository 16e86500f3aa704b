"""Profiles a decoder step and the encoder by operator.

    python -m docs.tools.operator_profile bundles/g2p-en --batch-size 32

uses ONNX Runtime's profiler on random tokens. The profiler has overhead, so the shares are more
reliable than the milliseconds.
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

from dragoman.optimize.step_inputs import random_sources
from dragoman.runtime import read_bundle
from dragoman.runtime.backends.onnxruntime.cpu import OnnxRuntimeBackend
from dragoman.runtime.decoding.request import as_batch
from dragoman.runtime.texts.shortlist import read_shortlist

MATRIX_PRODUCTS = frozenset(
    {
        "FusedMatMul",
        "Gemm",
        "MatMul",
        "MatMulIntegerToFloat",
        "MatMulNBits",
        "QGemm",
    }
)
"""Operators that no graph rewriting can avoid: with these kernels, their time is a lower bound."""

RUNS = 3
SHOWN = 12
"""Rows of a table."""


class OperatorTime(NamedTuple):
    """The time of all nodes of one operator in one run of a graph.

    Attributes:
        nodes: the number of nodes that ran
    """

    operator: str
    nodes: float
    milliseconds: float


class ProfiledBackend(OnnxRuntimeBackend):
    """ONNX Runtime with profiled sessions."""

    def _options(self, threads: int | None) -> onnxruntime.SessionOptions:
        options = super()._options(threads)
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(tempfile.gettempdir()) / "dragoman-profile")
        return options


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Sources decoded as one batch.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Threads of ONNX Runtime.",
)
@click.option(
    "--source-length",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="Tokens of every source, at most the model's source positions.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=2),
    default=32,
    show_default=True,
    help="Decoder steps, at most the model's target positions.",
)
def main(bundle: Path, batch_size: int, threads: int, source_length: int, steps: int) -> None:
    """Profile the graphs of BUNDLE by operator."""
    opened = read_bundle(bundle)
    model = opened.manifest.model
    backend = ProfiledBackend(opened, threads=threads)
    lengths = [min(source_length, model.max_source_positions)] * batch_size
    sources = random_sources(opened.manifest, lengths, np.random.default_rng(0))
    source, mask = as_batch(sources, model)
    runs = {"encoder": RUNS}
    if opened.manifest.model.has_decoder:
        prompt = np.full((batch_size, 1), model.start_token_id)
        steps, listed = min(steps, model.max_target_positions), opened.manifest.shortlist
        runs["decoder" if listed is None else "shortlist_decoder"] = RUNS * steps
        allowed = None
        if listed is not None:
            shortlist = read_shortlist(opened.path(listed.file), model)
            allowed = [shortlist.allowed(own.tolist()) for own in source]
            runs["shortlist_weights"] = RUNS
        for _ in range(RUNS):
            state = backend.start(source, mask, prompt, steps, allowed=allowed)
            for _ in range(steps):
                state.step()
    else:
        for _ in range(RUNS):
            backend.encode(source, mask)
    console = Console()
    for name, session in backend.sessions.items():
        file = Path(session.end_profiling())
        times = operator_times(file, runs.get(name, 1))
        if name not in runs:  # the decoder, where a shortlist takes its place
            continue
        title = "decoder step" if "decoder" in name else name
        console.print(_table(f"{title}, batch {batch_size}, {threads} threads", times))


def operator_times(file: Path, runs: int) -> list[OperatorTime]:
    """Return the average times in a profile, the longest first, and remove the file.

    Args:
        runs: the number of runs of the profiled graph
    """
    microseconds: Counter[str] = Counter()
    nodes: Counter[str] = Counter()
    for event in json.loads(file.read_text(encoding="utf-8")):
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            operator = event["args"]["op_name"]
            microseconds[operator] += event["dur"]
            nodes[operator] += 1
    file.unlink()
    return [
        OperatorTime(operator, nodes[operator] / runs, total / runs / 1e3)
        for operator, total in microseconds.most_common()
    ]


def _table(title: str, times: list[OperatorTime]) -> Table:
    total = sum(time.milliseconds for time in times)
    products = sum(time.milliseconds for time in times if time.operator in MATRIX_PRODUCTS)
    title += f": {total:.2f} ms, matrix products {products:.2f} ms ({products / total:.0%})"
    table = Table(title=title, title_justify="left")
    for heading in ("operator", "nodes", "ms", "share"):
        table.add_column(heading, justify="left" if heading == "operator" else "right")
    for time in times[:SHOWN]:
        share = time.milliseconds / total
        table.add_row(time.operator, f"{time.nodes:g}", f"{time.milliseconds:.3f}", f"{share:.1%}")
    return table


if __name__ == "__main__":
    main()
