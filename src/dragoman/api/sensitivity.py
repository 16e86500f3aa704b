"""Measures the sensitivity of a model to quantization, by product and layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from dragoman.errors import DragomanError
from dragoman.export.locating import locate_checkpoint
from dragoman.progress import Progress, Silent
from dragoman.runtime.format.bundle import Bundle, read_bundle

from .preflight import QUANTIZED, check_calibration, check_comparison

if TYPE_CHECKING:
    from dragoman.verification.sensitivity import Sensitivity

SOURCES, WINDOWS = 32, 4
"""Inputs to predict on by default: texts, and windows of audio, which are long."""


def sensitivity(
    bundle: str | Path,
    checkpoint: str | Path,
    *,
    revision: str | None = None,
    adapters: Sequence[str | Path] = (),
    inputs: str | Path | None = None,
    limit: int | None = None,
    calibration: str | Path | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Sensitivity:
    """Measure how quantizing each matrix product changes the predictions.

    The checkpoint is exported and quantized like the bundle: each product and each layer alone, and
    all products but the worst 1, 2, 4, ... Every variant is compared with the checkpoint in PyTorch
    on the same outputs.

    Args:
        bundle: bundle with graphs in int8 or int4
        checkpoint, revision, adapters: see `build`
        inputs: file of texts, one per line, or directory of audio clips; None: the checkpoint's
            held-out data, or if it has none a spoken sentence or random tokens
        limit: maximum number of inputs; None: `SOURCES`, or `WINDOWS` of audio
        calibration: calibration inputs of the bundle; None: random inputs
        threads: processor threads; None: all cores

    Raises:
        BundleError: the bundle is damaged.
        DragomanError: a path is wrong, the bundle belongs to another model, or its weights are not
            quantized.
    """
    progress = progress or Silent()
    read = read_bundle(Path(bundle))
    check_measurable(read)
    comparison = check_comparison(threads, inputs=inputs, limit=limit)
    calibrated_on = check_calibration(calibration, read.manifest.precision)
    located = locate_checkpoint(checkpoint, revision, progress, adapters)

    from dragoman.export.neutral_bundle import export_bundle
    from dragoman.runtime.format.writing import ScratchWriter
    from dragoman.verification.inputs.choosing import inputs_for
    from dragoman.verification.inputs.sources import calibration_sources
    from dragoman.verification.sensitivity.measuring import measure_sensitivity

    from .verify import check_same_model, open_like

    progress.stage("reading the checkpoint")
    opened = open_like(read, located)
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
    """Check that the sensitivity of a bundle can be measured."""
    manifest, precision = bundle.manifest, bundle.manifest.precision
    if precision not in QUANTIZED:
        why = ", which does not quantize weights one by one"
        if precision == "fp32":
            why = ": there is nothing to measure"
        problem = f"in {' or '.join(QUANTIZED)}, found {precision}{why}"
    elif manifest.target == "openvino":
        problem = "for target cpu or neutral, found openvino, which rounds inputs as it runs"
    elif manifest.executable.format != "onnx":
        problem = "of graphs, found engines, which are opaque: measure one of target cpu or neutral"
    else:
        return
    raise DragomanError(f"{bundle.directory}: expected a bundle {problem}")
