"""Bundles of a checkpoint: neutral, optimized, and with TensorRT engines.

This module does not import torch or onnx at the top, since processes without PyTorch import it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from dragoman.export.checkpoints import OpenedCheckpoint
    from dragoman.runtime.format.manifest import Precision, Range
    from dragoman.verification.inputs.items import Comparison
    from dragoman.verification.inputs.parity_inputs import ParityInputs

NEUTRAL = "dragoman-neutral"
MODEL = "g2p-en"
"""A trained checkpoint that is shipped."""

Calibration = Sequence[str | tuple[str, str]] | Sequence[list[int]]
"""What to quantize with: texts or pairs of them, or token ids; if there are none, random ones."""


def bundle_of_checkpoint(
    checkpoint: Path, directory: Path, *, target: str, precision: str, calibration: Calibration = ()
) -> Path:
    """Export a checkpoint and optimize it.

    The export is written once, as `dragoman-neutral` next to `directory`, for all bundles of the
    checkpoint. It is returned itself if no optimization is requested.
    """
    from dragoman.export import export_bundle
    from dragoman.export.checkpoints import read_checkpoint
    from dragoman.runtime.format.writing import new_directory

    neutral = directory.parent / NEUTRAL
    if not neutral.exists():
        source = read_checkpoint(checkpoint)
        name = checkpoint.resolve().name
        with new_directory(neutral) as unfinished:
            export_bundle(source.model, unfinished, name=name, tokenizers=source.tokenizers)
    return optimized_bundle(
        neutral, directory, target=target, precision=precision, calibration=calibration
    )


def optimized_bundle(
    neutral: Path, directory: Path, *, target: str, precision: str, calibration: Calibration = ()
) -> Path:
    """Optimize a neutral bundle into a new directory; for target "neutral" in fp32, return it."""
    from dragoman.optimize.target_bundle import optimize_bundle
    from dragoman.runtime import read_bundle

    if (target, precision) == ("neutral", "fp32"):
        return neutral
    bundle = read_bundle(neutral)
    calibrated: dict[str, Any] = {}
    if tokens := [source for source in calibration if isinstance(source, list)]:
        calibrated = {"calibration": tokens}
    elif calibration:
        from dragoman.verification.inputs.sources import calibration_sources

        file = directory.with_suffix(".calibration.txt")
        pairs = [(text,) if isinstance(text, str) else text for text in calibration]
        lines = ["\t".join(" ".join(str(text).split()) for text in pair) for pair in pairs]
        file.write_text("\n".join(lines), "utf-8")
        sources = calibration_sources(bundle, file)
        calibrated = {"calibration": sources.encodable, "calibration_types": sources.types}
    directory.mkdir()
    kind = cast("Precision", precision)
    optimize_bundle(bundle, directory, target=target, precision=kind, **calibrated)
    return directory


def bundle_with_engines(
    neutral: Path,
    directory: Path,
    *,
    target: str,
    precision: str,
    batches: tuple[Range, ...],
    source: Range,
    capacity: int,
) -> Path:
    """Build TensorRT engines of a neutral bundle into a new directory, for at most new tokens.

    The optimized graphs are written next to it. Profiles have these batch sizes and lengths.
    """
    from dragoman.optimize.tensorrt.engine_bundle import build_engines
    from dragoman.optimize.tensorrt.request import EngineOptions
    from dragoman.runtime import read_bundle
    from dragoman.runtime.backends.tensorrt.packages import find_package
    from dragoman.runtime.format.manifest import Profile

    find_package(target)  # fail early
    graphs = optimized_bundle(
        neutral, directory.with_name(f"{directory.name}-graphs"), target=target, precision=precision
    )
    profiles = tuple(Profile(batch, source) for batch in batches)
    directory.mkdir()
    build_engines(read_bundle(graphs), directory, EngineOptions(profiles, capacity))
    return directory


def exported(directory: Path) -> Path:
    """Export the model into a new directory."""
    from dragoman.reference_model.pretrained import find_checkpoint

    directory.mkdir()
    unchanged = {"target": "neutral", "precision": "fp32"}
    return bundle_of_checkpoint(find_checkpoint(MODEL), directory / MODEL, **unchanged)


def opened(checkpoint: str | Path, comparison: Comparison) -> tuple[OpenedCheckpoint, ParityInputs]:
    """Open a checkpoint, with inputs to verify a bundle on."""
    from dragoman.export.checkpoints import open_checkpoint
    from dragoman.export.locating import locate_checkpoint
    from dragoman.verification.inputs.choosing import inputs_for

    found = open_checkpoint(locate_checkpoint(checkpoint))
    return found, inputs_for(found, comparison)
