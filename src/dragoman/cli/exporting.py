"""Export and parity with progress shown: what `export`, `build` and `verify` share."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from decimal import ROUND_CEILING, Context
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from dragoman import DragomanError
from dragoman.benchmarks.first_difference import first_difference
from dragoman.benchmarks.parity import TOLERANCES, ParityInputs, check_parity
from dragoman.export import export_bundle
from dragoman.optimize.compare import NOT_FINITE
from dragoman.optimize.emulation import emulated_bundle
from dragoman.runtime import Bundle, Model, read_bundle
from dragoman.runtime.backends import default_backend, open_backend
from dragoman.runtime.format.manifest import TENSORRT_TARGETS, Manifest, Precision, Target
from dragoman.runtime.format.records import Parity

from .checkpoints import Checkpoint
from .passes import optimize_into


def export_into(directory: Path, checkpoint: Checkpoint) -> Manifest:
    """Export with a line of status."""
    console = Console(stderr=True)
    with console.status("loading") as status:
        return export_bundle(
            checkpoint.model,
            directory,
            name=checkpoint.name,
            tokenizers=checkpoint.tokenizers,
            progress=lambda stage: status.update(f"{stage} ..."),
        )


def build_into(
    directory: Path,
    checkpoint: Checkpoint,
    target: Target,
    precision: Precision,
    calibration: Path | None,
) -> Manifest:
    """Export, and optimize for the target."""
    if (target, precision) == ("neutral", "fp32"):
        return export_into(directory, checkpoint)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".neutral-") as neutral:
        export_into(Path(neutral), checkpoint)
        bundle = read_bundle(Path(neutral))
        return optimize_into(directory, bundle, target, precision, calibration)


@contextlib.contextmanager
def loaded(bundle: Bundle, threads: int | None, backend: str | None) -> Iterator[tuple[Model, str]]:
    """A bundle ready to run, and what runs it.

    For bf16, of which ONNX Runtime has no kernels on a processor, and for graphs that engines will
    be built of, whose overflows it would hide, that is a copy that computes the same numbers.
    """
    manifest, backend = bundle.manifest, backend or default_backend(bundle)
    for_engines = manifest.target in TENSORRT_TARGETS and manifest.engines is None
    halves = manifest.precision == "bf16" or (for_engines and manifest.precision != "fp32")
    if not halves or backend != "onnxruntime":
        with Model(bundle, open_backend(bundle, backend, threads)) as model:
            yield model, backend
        return
    with tempfile.TemporaryDirectory() as copy:
        emulated = emulated_bundle(bundle, Path(copy))
        model = Model(emulated, open_backend(emulated, backend, threads))
        half = "bfloat16" if manifest.precision == "bf16" else "float16"
        yield model, f"onnxruntime, {half} emulated in float32"


def verify_model(
    model: Model, checkpoint: Checkpoint, inputs: ParityInputs, backend: str
) -> Parity:
    """Check parity with a progress bar."""
    columns = (
        TextColumn("[progress.description]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task("verifying", total=len(inputs.sources))
        return check_parity(
            model,
            checkpoint.model,
            inputs,
            backend=backend,
            progress=lambda advanced: progress.advance(task, advanced),
        )


def where_it_differs(directory: Path, checkpoint: Checkpoint, inputs: ParityInputs) -> str:
    """Of a bundle that failed: the first tensor that is not the model's, in words."""
    bundle = read_bundle(directory)
    if bundle.manifest.engines is not None:
        return "what is within its engines cannot be seen"
    tolerance = TOLERANCES[bundle.manifest.precision]
    try:
        with tempfile.TemporaryDirectory() as neutral:
            export_into(Path(neutral), checkpoint)
            found = first_difference(read_bundle(Path(neutral)), bundle, inputs.sources, tolerance)
    except DragomanError as error:  # the verdict matters more
        return f"where it differs cannot be said ({error})"
    if found is None:
        return f"no tensor within the graphs differs by more than {tolerance:g}"
    return f"the first tensor to differ by more than {tolerance:g}: {found}"


def print_parity(parity: Parity) -> None:
    """The figures as a table; what is wrong first."""
    rows = [*_tensor_rows(parity), _token_row(parity), *_task_rows(parity)]
    table = Table(
        title=escape(f"parity with {parity.oracle}, on {parity.inputs}"), title_justify="left"
    )
    for heading in ("level", "what", "found", "allowed", ""):
        table.add_column(heading)
    for row in sorted(rows, key=lambda row: row[-1] != FAILED):
        table.add_row(*row)
    Console().print(table)


FAILED, PASSED = "[red]failed[/red]", "[green]passed[/green]"


def _verdict(passed: bool) -> str:
    return PASSED if passed else FAILED


def _tensor_rows(parity: Parity) -> list[tuple[str, ...]]:
    """The logits, and of the cross keys and values the one that differs most."""
    logits = [t for t in parity.tensors if t.name == "logits"]
    others = [t for t in parity.tensors if t.name != "logits"]
    worst = max(others, key=lambda t: t.difference)
    rows: list[tuple[str, ...]] = []
    for tensor in (worst, *logits):
        beyond = max(t.positions_beyond for t in ([tensor] if tensor in logits else others))
        found = (
            f"{tensor.difference:.2g} (absolute {tensor.largest_absolute:.2g}, "
            f"relative {tensor.largest_relative:.2g})"
        )
        if beyond:
            found += f"; more than allowed at {beyond} of {tensor.positions} positions"
        what = tensor.name if tensor in logits else f"cross keys and values, worst {tensor.name}"
        rows.append(("tensors", what, found, f"{tensor.tolerance:g}", _verdict(tensor.passed)))
    return rows


def _token_row(parity: Parity) -> tuple[str, ...]:
    tokens = parity.tokens
    found = f"{tokens.identical} of {tokens.sequences} identical"
    if tokens.divergences:
        first = max(tokens.divergences, key=lambda d: d.margin)
        found += (
            f"; largest margin lost {first.margin:.2g} (input {first.input}, step {first.step}: "
            f"token {first.found_token} for {first.expected_token})"
        )
    return ("tokens", "free-running greedy", found, "see README", _verdict(tokens.passed))


def _task_rows(parity: Parity) -> list[tuple[str, ...]]:
    if parity.task is None:
        return []
    task = parity.task
    found = f"{task.bundle:.2%}, oracle {task.oracle:.2%}"
    return [("task", task.metric, found, "see README", _verdict(task.passed))]


def failure(parity: Parity) -> str:
    """One line on what is wrong, first things first, and which tolerance would pass."""
    failed = [tensor for tensor in parity.tensors if not tensor.passed]
    if failed:
        first, worst = failed[0], max(tensor.difference for tensor in failed)
        if worst >= NOT_FINITE:
            return f"parity failed: {first.name} has values that are NaN or infinite"
        return (
            f"parity failed: {first.name} differs by {first.difference:.3g}, allowed "
            f"{first.tolerance:g}; a tolerance of {_rounded_up(worst)} would pass"
        )
    tokens = parity.tokens
    if not tokens.passed:
        largest = max(tokens.divergences, key=lambda d: d.margin)
        return (
            f"parity failed: {tokens.sequences - tokens.identical} of {tokens.sequences} sequences "
            f"differ; the worst, input {largest.input}, at step {largest.step}: expected token "
            f"{largest.expected_token}, found {largest.found_token}, margin {largest.margin:.3g}"
        )
    assert parity.task is not None
    task = parity.task
    return (
        f"parity failed: {task.metric} is {task.bundle:.2%}, the oracle's {task.oracle:.2%}; a "
        f"tolerance of {_rounded_up(task.bundle - task.oracle)} would pass"
    )


class ParityFailedError(click.ClickException):
    exit_code = 1


def _rounded_up(value: float) -> str:
    """Three digits, and never less than the value."""
    return f"{float(Context(prec=3, rounding=ROUND_CEILING).create_decimal(value)):g}"
