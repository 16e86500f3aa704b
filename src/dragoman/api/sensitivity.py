"""Measures what the precision of each product costs, and what keeping some in fp32 gains."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from dragoman.errors import DragomanError
from dragoman.export.locating import locate_checkpoint
from dragoman.progress import Progress, Silent
from dragoman.runtime.format.bundle import Bundle, read_bundle

from .preflight import QUANTIZED, check_calibration, check_comparison

if TYPE_CHECKING:
    from dragoman.verification.sensitivity.results import Sensitivity

SOURCES, WINDOWS = 32, 4
"""Inputs to predict on by default: texts, and windows of audio, which are long."""


def sensitivity(
    bundle: str | Path,
    checkpoint: str | Path,
    *,
    revision: str | None = None,
    inputs: str | Path | None = None,
    limit: int | None = None,
    calibration: str | Path | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Sensitivity:
    """Measure how the precision of each product changes what the model predicts.

    The checkpoint is exported and rounded again, as the bundle was. Each product, and each layer,
    is rounded while everything else stays in fp32. Then all products are rounded but the worst 1,
    2, 4, ... Every variant is compared with the checkpoint in PyTorch, along the same outputs.

    Args:
        bundle: of graphs, in int8 or int4
        checkpoint: that it was made from: a directory as its library wrote it; the id of a model at
            the Hugging Face Hub, such as "Helsinki-NLP/opus-mt-en-de"; or the name of one that
            comes with Dragoman, such as "g2p-en"
        revision: of a model at the hub: a branch, a tag or a commit; None: main
        inputs: what to predict on: a file of texts, one per line, or a directory of audio clips;
            None: the checkpoint's held-out data, or random inputs if it has none
        limit: the most inputs; None: `SOURCES`, or `WINDOWS` of audio
        calibration: what the bundle was calibrated on; None: random inputs
        threads: processor threads; all cores if None
        progress: notified of each stage as it begins, and how much of it is done

    Raises:
        BundleError: the bundle is damaged.
        DragomanError: a path is wrong, the bundle was made from another model, or its weights are
            not quantized.
    """
    progress = progress or Silent()
    read = read_bundle(Path(bundle))
    check_measurable(read)
    comparison = check_comparison(threads, inputs=inputs, limit=limit)
    calibrated_on = check_calibration(calibration, read.manifest.precision)
    located = locate_checkpoint(checkpoint, revision, progress)

    from dragoman.export.checkpoints import open_checkpoint
    from dragoman.export.neutral_bundle import export_bundle
    from dragoman.runtime.format.writing import ScratchWriter
    from dragoman.verification.inputs.choosing import inputs_for
    from dragoman.verification.inputs.sources import calibration_sources
    from dragoman.verification.sensitivity.measuring import measure_sensitivity

    from .verify import check_same_model

    progress.stage("reading the checkpoint")
    opened = open_checkpoint(located)
    check_same_model(read, opened, checkpoint)
    if limit is None:
        most = WINDOWS if read.manifest.model.takes_audio else SOURCES
        comparison = dataclasses.replace(comparison, limit=most)
    parity_inputs = inputs_for(opened, comparison)
    with TemporaryDirectory() as directory:
        neutral = export_bundle(
            opened.model,
            Path(directory),
            name=opened.name,
            tokenizers=opened.tokenizers,
            writer=ScratchWriter,
            progress=progress.stage,
        )
        calibrated = calibration_sources(neutral, calibrated_on) if calibrated_on else None
        return measure_sensitivity(
            neutral,
            read,
            opened.model,
            parity_inputs,
            calibration=calibrated,
            calibrated_on=None if calibrated_on is None else calibrated_on.name,
            threads=threads,
            progress=progress,
        )


def check_measurable(bundle: Bundle) -> None:
    """Check that the sensitivity of a bundle can be measured.

    Raises:
        DragomanError: the weights of a bundle are not quantized, or it has engines.
    """
    manifest = bundle.manifest
    if manifest.precision == "fp32":
        raise DragomanError(
            f"{bundle.directory}: expected a bundle in {' or '.join(QUANTIZED)}, found fp32: there "
            "is nothing to measure"
        )
    if manifest.precision not in QUANTIZED:
        raise DragomanError(
            f"{bundle.directory}: expected a bundle in {' or '.join(QUANTIZED)}, found "
            f"{manifest.precision}, which does not quantize weights one by one"
        )
    if manifest.executable.format != "onnx":
        raise DragomanError(
            f"{bundle.directory}: expected a bundle of graphs, found engines, which are opaque: "
            "measure one of target cpu or neutral"
        )
