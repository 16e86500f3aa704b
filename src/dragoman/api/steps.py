"""The steps of `build` and `verify`, imported once nothing is left to refuse."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from dragoman.benchmarks.parity import ParityInputs, check_parity, describe_failure, running
from dragoman.benchmarks.parity.first_difference import describe_first_difference
from dragoman.benchmarks.parity.sources import calibration_sources
from dragoman.export.neutral_bundle import export_bundle
from dragoman.export.opened_checkpoint import OpenedCheckpoint
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.optimize.targets import Target
from dragoman.progress import Progress
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.records import Parity
from dragoman.runtime.format.writing import BundleWriter, ScratchWriter

NewDirectory = Callable[[str], Path]
"""Makes a temporary directory for a purpose, on the file system of the output."""


@contextlib.contextmanager
def scratch_directories(beside: Path) -> Iterator[NewDirectory]:
    """Temporary directories beside a path, removed when the block ends."""
    with contextlib.ExitStack() as stack:

        def new(purpose: str) -> Path:
            directory = TemporaryDirectory(dir=beside.parent, prefix=f".{purpose}-")
            return Path(stack.enter_context(directory))

        yield new


def make_graphs(
    checkpoint: OpenedCheckpoint,
    directory: Path,
    scratch: NewDirectory,
    target: Target,
    precision: Precision,
    calibration: Path | None,
    progress: Progress,
) -> tuple[Bundle, Bundle]:
    """Export a checkpoint and optimize it.

    Args:
        directory: of the bundle; graphs that engines are built from go to a scratch directory

    Returns:
        the neutral bundle and the optimized one, which may be the same
    """
    as_exported = (target.name, precision) == ("neutral", "fp32")
    neutral = export_bundle(
        checkpoint.model,
        directory if as_exported else scratch("neutral"),
        name=checkpoint.name,
        tokenizers=checkpoint.tokenizers,
        writer=BundleWriter if as_exported else ScratchWriter,
        progress=progress.stage,
    )
    if as_exported:
        return neutral, neutral
    final = target.executable == "onnx"
    graphs = optimize_bundle(
        neutral,
        directory if final else scratch("graphs"),
        target=target.name,
        precision=precision,
        calibration=calibration_sources(neutral, calibration) if calibration else None,
        writer=BundleWriter if final else ScratchWriter,
        progress=progress.stage,
    )
    return neutral, graphs


def compare(
    bundle: Bundle,
    checkpoint: OpenedCheckpoint,
    inputs: ParityInputs,
    threads: int | None,
    backend: str | None,
    progress: Progress,
) -> Parity:
    """Check parity, reporting how many inputs are done."""
    progress.stage("verifying")
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress.advance(done, len(inputs.sources))

    with running(bundle, threads, backend) as (model, ran_on):
        return check_parity(model, checkpoint.model, inputs, backend=ran_on, advance=advance)


def describe_problem(
    parity: Parity, neutral: Bundle, bundle: Bundle, inputs: ParityInputs
) -> str | None:
    """What failed, and the first tensor that differs from the neutral bundle's; None if parity
    holds."""
    if parity.passed:
        return None
    where = describe_first_difference(neutral, bundle, inputs.sources)
    return f"{describe_failure(parity)}; {where}"
