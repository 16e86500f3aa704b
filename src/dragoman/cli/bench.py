"""The command `dragoman bench`."""

import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from dragoman.benchmarks.arrangement import try_arrangements
from dragoman.benchmarks.latency import BenchReport
from dragoman.benchmarks.latency import bench as measure
from dragoman.errors import refuse_unwritable_file
from dragoman.files.regular_files import write_text
from dragoman.runtime import read_bundle
from dragoman.runtime.backends import check_backend
from dragoman.runtime.serving.arrangement import remember

from .shared.options import (
    PATH,
    backend_option,
    bundle_argument,
    counted,
    device_option,
    fallback_option,
    threads_option,
)
from .shared.terminal import notify


@click.command()
@bundle_argument
@counted(
    "--batch-size",
    "batch_sizes",
    multiple=True,
    help="Batch size to measure; repeatable [1, 8, 32; speech: 1, 4].",
)
@counted(
    "--source-length",
    help="Tokens of a source or prompt [32]; a source of a speech model is always one window.",
)
@counted("--new-tokens", help="Decoding steps per batch [64]; for models with a decoder.")
@counted("--runs", default=5, show_default=True, help="Batches to measure for each size.")
@click.option("--json", "json_file", type=PATH, help="Also write the figures to this JSON file.")
@click.option(
    "--arrangement",
    "arrange",
    is_flag=True,
    help="Instead find the fastest numbers of workers, threads and rows for `dragoman serve`, and "
    "keep them for this machine.",
)
@backend_option
@device_option
@fallback_option
@threads_option
def bench(
    bundle: Path,
    batch_sizes: tuple[int, ...],
    runs: int,
    json_file: Path | None,
    arrange: bool,
    backend: str | None,
    device: str | None,
    **measured: Any,
) -> None:
    """Measure the speed and the memory of BUNDLE on random inputs.

    The figures are the latency of the encoder or prompt, of a decoder step and of a whole output,
    tokens per second, load time and memory; on a GPU also the share of the memory's bandwidth that
    a step uses. End tokens are ignored, so that every batch does the same work.

    \b
    dragoman bench bundles/g2p-en --threads 2 --json g2p-en.json
    dragoman bench bundles/g2p-en --arrangement
    """
    if json_file is not None:
        refuse_unwritable_file(json_file)
    if arrange:
        _arrange(bundle, backend, device)
        return
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("measuring", total=(len(batch_sizes) or 3) * (runs + 1))
        report = measure(
            bundle,
            backend=backend,
            device=device,
            batch_sizes=batch_sizes or None,
            runs=runs,
            command=" ".join(["dragoman", *sys.argv[1:]]),
            progress=lambda: progress.advance(task),
            **measured,
        )
    _print(report)
    if json_file is not None:
        write_text(json_file, report.to_json())


def _arrange(bundle: Path, backend: str | None, device: str | None) -> None:
    with Console(stderr=True).status("measuring") as status:
        tried = try_arrangements(bundle, backend=backend, device=device, progress=status.update)
    table = Table("workers x threads", "a second", title_justify="left")
    for each in tried:
        table.add_row(str(each.arrangement), f"{each.per_second:,.0f}")
    Console().print(table)
    opened = read_bundle(bundle)
    on_gpu = check_backend(opened, backend, device).device == "cuda"
    warning = remember(opened.manifest, tried[0].arrangement, on_gpu=on_gpu)
    if warning is not None:
        notify(warning)


def _print(report: BenchReport) -> None:
    decoded = f", {report.new_tokens} new tokens" if report.new_tokens else ""
    table = Table(
        title=f"{report.bundle} {report.precision}, {report.backend}, "
        f"{report.threads or 'all'} threads, source {report.source_length}{decoded}, "
        f"{report.runs} runs: ms p50 / p90 / p99",
        title_justify="left",
    )
    parts = {part: part for part in ("encoder", "prompt", "step", "sentence")}
    parts["step"] = "decoder step"
    measured = [part for part in parts if any(getattr(row, part) for row in report.batches)]
    shares = {row.batch_size: row.share_of_bandwidth for row in report.memory_reads}
    last = ["tokens/s", *(["of bandwidth"] if shares else [])]
    for heading in ("batch", *(parts[part] for part in measured), *last):
        table.add_column(heading, justify="right")
    for row in report.batches:
        cells = [
            f"{p.p50:.2f} / {p.p90:.2f} / {p.p99:.2f}"
            for part in measured
            if (p := getattr(row, part)) is not None
        ]
        share = [f"{shares[row.batch_size]:.0%}"] if shares else []
        table.add_row(str(row.batch_size), *cells, f"{row.tokens_per_second:,.0f}", *share)
    console = Console()
    console.print(table)
    console.print(
        f"load {report.load_seconds:.2f} s, peak memory {report.peak_memory_mb:.0f} MB, bundle "
        f"{report.bundle_mb:.1f} MB; {report.machine}"
    )
    if (found := report.bandwidth) is not None:
        peak = "unknown" if found.peak is None else f"{found.peak:,.0f} GB/s"
        console.print(f"memory bandwidth of the GPU: peak {peak}, copies {found.copied:,.0f} GB/s")
    console.print(report.command, soft_wrap=True)
