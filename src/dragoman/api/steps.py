"""The steps of `build` and `verify`, imported after arguments are checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path

from dragoman.export.checkpoints import OpenedCheckpoint
from dragoman.export.neutral_bundle import export_bundle, share_weights
from dragoman.optimize.targets import Target
from dragoman.progress import Progress
from dragoman.runtime.backends.interface import NO_SHORTLIST, BackendError
from dragoman.runtime.format.bundle import Bundle, without_shortlist
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.parity import Parity
from dragoman.runtime.format.writing import BundleWriter, ScratchWriter
from dragoman.verification.checks.shortlist import compare_shortlist
from dragoman.verification.inputs.parity_inputs import ParityInputs
from dragoman.verification.parity import check_parity, describe_first_difference, running, unrun
from dragoman.verification.stored import compare_stored
from dragoman.verification.verdict import describe_failure

from .optimize import NewDirectory, optimize_graphs


def make_graphs(
    checkpoint: OpenedCheckpoint,
    directory: Path,
    scratch: NewDirectory,
    target: Target,
    precision: Precision,
    calibration: Path | None,
    progress: Progress,
    *,
    attention: bool = False,
    keep_fp32: Collection[str] = (),
) -> tuple[Bundle, Bundle]:
    """Export a checkpoint and optimize it.

    Args:
        scratch: gets the source graphs of engines
        keep_fp32: see `optimize_bundle`

    Returns:
        the neutral bundle and the optimized one, which may be the same
    """
    as_exported = (target.name, precision) == ("neutral", "fp32")
    neutral = export_bundle(
        checkpoint.model,
        directory if as_exported else scratch("neutral"),
        name=checkpoint.name,
        tokenizers=checkpoint.tokenizers,
        notes=checkpoint.notes,
        origin=checkpoint.origin,
        adapters=checkpoint.adapters,
        attention=attention,
        writer=BundleWriter if as_exported else ScratchWriter,
        progress=progress.stage,
    )
    share_weights(checkpoint.model, neutral)
    if as_exported:
        return neutral, neutral
    graphs = optimize_graphs(
        *(neutral, directory, scratch, target, precision, calibration, progress),
        keep_fp32=keep_fp32,
    )
    return neutral, graphs


def compare(
    bundle: Bundle,
    checkpoint: OpenedCheckpoint,
    inputs: ParityInputs,
    threads: int | None,
    backend: str | None,
    progress: Progress,
    device: str | None = None,
) -> Parity:
    """Check parity and report progress.

    A bundle whose settings or tokenizers differ from the checkpoint's is not run.
    """
    progress.stage("comparing settings and tokenizers")
    listed, bundle = bundle, without_shortlist(bundle)
    if listed.manifest.shortlist is not None and backend not in (None, "onnxruntime"):
        raise BackendError(NO_SHORTLIST)
    stored = compare_stored(bundle, checkpoint, inputs)
    if not all(check.passed for check in stored):
        return unrun(stored, inputs)
    progress.stage("verifying")
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress.advance(done, len(inputs.sources))

    with running(bundle, threads, backend, device) as (model, ran_on):
        parity = check_parity(
            model,
            checkpoint.model,
            inputs,
            backend=ran_on,
            bundle=bundle,
            checks=stored,
            threads=threads,
            advance=advance,
        )
    if listed.manifest.shortlist is None:
        return parity
    progress.stage("comparing with the shortlist")
    with running(listed, threads, backend, device) as (model, _):
        check, cost = compare_shortlist(model, inputs, threads)
    return dataclasses.replace(
        parity,
        passed=parity.passed and check.passed,
        checks=(*parity.checks, check),
        shortlist=cost,
    )


def can_be_located(parity: Parity, bundle: Bundle) -> bool:
    """Return whether finding the first tensor that differs helps to explain a failure.

    It does not if the bundle was not run, or, below fp32, where correct tensors differ too, if a
    check already names the fault.
    """
    named = any(not check.passed for check in parity.checks)
    return bool(parity.tensors) and not (named and bundle.manifest.precision != "fp32")


def describe_problem(
    parity: Parity, neutral: Bundle, bundle: Bundle, inputs: ParityInputs
) -> str | None:
    """Describe the failed check, if any, and the first tensor that differs from the neutral one."""
    if parity.passed:
        return None
    if not can_be_located(parity, bundle):
        return describe_failure(parity)
    where = describe_first_difference(neutral, bundle, inputs.sources)
    return f"{describe_failure(parity)}; {where}"
