"""Tables of passes, parity and engines."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dragoman.api.verify import AnswersVerification
from dragoman.files.text_lines import printable
from dragoman.optimize.tensorrt.profiles import describe
from dragoman.optimize.tensorrt.request import describe_capabilities
from dragoman.runtime import Bundle
from dragoman.runtime.backends.cuda import find_gpu
from dragoman.runtime.backends.interface import BackendError
from dragoman.runtime.backends.tensorrt.engines import device_memory
from dragoman.runtime.format.manifest import Manifest, PassRecord, Range, TensorRTEngines
from dragoman.runtime.format.parity import Parity
from dragoman.verification.parity_rows import parity_rows
from dragoman.verification.verdict import describe_proof

COLORS = {"failed": "red", "passed": "green", "undecided": "yellow"}


def print_passes(passes: Sequence[PassRecord]) -> None:
    """Print the passes, and then the nodes that they left unchanged."""
    if not passes:
        return
    table = Table(title="passes", title_justify="left")
    table.add_column("graph")
    table.add_column("pass", no_wrap=True)
    for heading in ("matches", "refused", "nodes", "difference", "allowed"):
        table.add_column(heading, justify="right")
    for record in passes:
        table.add_row(
            record.graph,
            record.name,
            str(record.matches),
            str(len(record.refusals)),
            f"{record.nodes_before} -> {record.nodes_after}",
            "not measured" if record.difference is None else f"{record.difference:.2g}",
            f"{record.tolerance:.3g}",
        )
    console = Console()
    console.print(table)
    branches = dict.fromkeys(b for record in passes for b in record.not_compared)
    remarks = [
        *(f"not compared: {b}: no input was found that executes it" for b in branches),
        *(
            f"{record.graph}: {record.name} left {refusal.operator} {refusal.node} unchanged: "
            f"{refusal.reason}"
            for record in passes
            for refusal in record.refusals
        ),
    ]
    for remark in remarks:
        console.print(remark, markup=False, highlight=False, soft_wrap=True)


def print_parity(parity: Parity) -> None:
    """Print the parity figures, failed ones first, and a conclusion."""
    title = escape(printable(f"parity with {parity.oracle}, on {parity.inputs}"))
    table = Table(*("level", "what", "found", "allowed", ""), title=title, title_justify="left")
    for row in sorted(parity_rows(parity), key=lambda row: row.state != "failed"):
        cells = (row.level, row.what, row.found, row.allowed)
        table.add_row(*(escape(printable(cell)) for cell in cells), outcome(row.state))
    console = Console(emoji=False)
    console.print(table)
    if proof := describe_proof(parity):
        console.print(proof, markup=False, highlight=False)


def print_answers(verification: AnswersVerification) -> None:
    """Print the outcome of each known answer in each run, with the largest gap."""
    title = escape(f"known answers on {verification.machine}")
    headings = ("input", *verification.runs, "largest gap")
    table = Table(*headings, title=title, title_justify="left")
    problems = zip(*verification.runs.values(), strict=True)
    for name, each, gap in zip(verification.inputs, problems, verification.gaps, strict=True):
        cells = [outcome("passed" if problem is None else "failed") for problem in each]
        table.add_row(escape(printable(name)), *cells, f"{gap:.2g}")
    Console(emoji=False).print(table)


def print_engines(manifest: Manifest) -> None:
    """Print the engines, their GPUs and sizes; nothing for graphs."""
    engines = manifest.executable
    if not isinstance(engines, TensorRTEngines):
        return
    click.echo(f"engines of {manifest.target} {engines.version} (CUDA {engines.cuda_version})")
    what = "new tokens" if manifest.model.has_encoder else "positions"
    most = f", at most {engines.capacity} {what}" if engines.capacity else ""
    for index, profile in enumerate(engines.profiles):
        click.echo(f"  profile {index}: {describe(profile)}{most}")
    click.echo(f"  run on {describe_capabilities(manifest.target, engines.compute_capabilities)}")
    sizes = {file.path: file.size for file in manifest.files}
    for name, report in engines.reports.items():
        weights = sum(report.weights.values())
        size = sizes[manifest.graphs[name].file]
        click.echo(
            f"  {name}: {size / 1e6:.1f} MB, including {weights / 1e6:.1f} MB of weights; "
            f"attention: {report.attentions}, {'fused in ' if report.fused else ''}"
            f"{_fused(report.fused)}"
        )


def outcome(state: str) -> str:
    """Return the outcome of a check in its color, as a table cell."""
    color = COLORS.get(state)
    return state if color is None else f"[{color}]{state}[/{color}]"


def engine_table(bundle: Bundle, engines: TensorRTEngines) -> Table:
    """Return the table of engines; values that need a GPU are marked."""
    manifest = bundle.manifest
    sizes = {file.path: file.size for file in manifest.files}
    reports = list(engines.reports.values())
    files = [manifest.graphs[name].file for name in engines.reports]
    title = f"engines of {manifest.target} {engines.version}, CUDA {engines.cuda_version}"
    table = Table("", *engines.reports, title=title, title_justify="left")
    table.add_row("size", *(f"{sizes[file]:,} bytes" for file in files))
    table.add_row("weights", *(_counts(r.weights, " bytes of ") for r in reports))
    table.add_row("layers", *(_counts(r.layers, " ") for r in reports))
    table.add_row("attention", *(f"{r.attentions}, {_fused(r.fused)}" for r in reports))
    dequantized = (
        "unknown" if r.dequantizations is None else str(r.dequantizations) for r in reports
    )
    table.add_row("dequantized by separate kernels", *dequantized)
    table.add_row("memory while running", *(_memory(bundle, file) for file in files))
    for index, profile in enumerate(engines.profiles):
        batch, source = _range(profile.batch), _range(profile.source)
        limits = {
            "encoder": f"batch {batch}\nsource {source}",
            "decoder": f"batch {batch}\nsource {source}\nat most {engines.capacity} new tokens",
            "candidates": f"batch {batch}",
        }
        table.add_row(f"profile {index}", *(limits[name] for name in engines.reports))
    capabilities = ", ".join(engines.compute_capabilities) or "the package's default"
    table.add_row("compute capabilities", *([capabilities] * len(reports)))
    table.add_row("refittable", *(["yes" if engines.refittable else "no"] * len(reports)))
    return table


def _counts(counts: dict[str, int], between: str) -> str:
    return "\n".join(f"{count:,}{between}{name}" for name, count in counts.items())


def _fused(kernels: dict[str, int] | None) -> str:
    if kernels is None:
        return "unknown whether fused"
    return ", ".join(f"{count} {name}" for name, count in kernels.items()) or "none fused"


def _range(sizes: Range) -> str:
    return f"{sizes.smallest} to {sizes.largest} (best {sizes.best})"


def _memory(bundle: Bundle, file: str) -> str:
    try:
        find_gpu()
    except BackendError:
        return "known only on a GPU"
    try:
        return f"{device_memory(bundle, file):,} bytes"
    except BackendError as error:
        return str(error)
