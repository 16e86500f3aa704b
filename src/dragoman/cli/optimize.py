"""`dragoman optimize`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .engine_options import EngineRequest, Sizes, engine_options, requested
from .options import calibration_option, force_option, precision_option, target_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dragoman.runtime.format.manifest import Precision, Target
    from dragoman.runtime.format.records import PassRecord


@click.command(short_help="Fuse and quantize: a bundle, or any ONNX Transformer.")
@click.argument("source", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="Where the result goes: a bundle, or an ONNX file.",
)
@target_option
@precision_option
@calibration_option
@engine_options
@click.option(
    "--report", type=click.Path(path_type=Path), help="Write what each pass did to this file, JSON."
)
@click.option("--no-compare", is_flag=True, help="Do not run an ONNX file to measure differences.")
@force_option
def optimize(
    source: Path,
    output: Path,
    target: Target | None,
    precision: Precision,
    calibration: Path | None,
    profiles: tuple[Sizes, ...],
    source_length: Sizes | None,
    capacity: int | None,
    compute_capabilities: tuple[str, ...],
    refittable: bool,
    report: Path | None,
    no_compare: bool,
    force: bool,
) -> None:
    """Turn SOURCE, a neutral bundle or an ONNX file, into the fastest form for a target; for the
    TensorRT targets, of a bundle, into engines.

    Says for every pass what it fused, what it left alone and why, and the largest difference that
    it made. A bundle is not verified: `dragoman verify` does that.

    \b
    dragoman optimize bundles/neutral -o bundles/int8 --precision int8
    dragoman optimize bundles/neutral -o bundles/rtx --target tensorrt-rtx --precision fp16
    dragoman optimize decoder.onnx -o fused.onnx --target neutral --report fused.json
    """
    from dragoman import DragomanError

    from .passes import chosen_target

    chosen = chosen_target(target, precision)
    request = requested(
        chosen, precision, profiles, source_length, capacity, compute_capabilities, refittable
    )
    if source.is_dir():
        if no_compare:
            raise click.UsageError("--no-compare: a bundle's passes are always compared")
        records = _bundle(source, output, chosen, precision, calibration, request, force)
        following = f"not verified. Next: dragoman verify {output} CHECKPOINT"
    else:
        if precision != "fp32":
            raise DragomanError(
                f"{source}: --precision {precision} needs a bundle, whose embeddings are known"
            )
        if calibration is not None:
            raise DragomanError(f"{source}: --calibration needs a bundle, which can decode texts")
        if request is not None:
            raise DragomanError(
                f"{source}: --target {chosen} needs a bundle, whose inputs are known: use --target "
                "neutral for a file"
            )
        records = _file(source, output, chosen, not no_compare, force)
        following = "see above for what was left alone"
    if report is not None:
        from dragoman.runtime.format.plain_data import to_plain

        try:
            report.write_text(json.dumps([to_plain(r) for r in records], indent=1) + "\n", "utf-8")
        except OSError as error:
            raise DragomanError(
                f"{output} is written, the report is not: {report}: {error.strerror}"
            ) from error
    click.echo(f"Optimized {output}, {following}")


def _bundle(
    source: Path,
    output: Path,
    target: Target,
    precision: Precision,
    calibration: Path | None,
    request: EngineRequest | None,
    force: bool,
) -> Sequence[PassRecord]:
    from dragoman.runtime import read_bundle
    from dragoman.runtime.format.bundle import new_directory

    from .engines import engines_into, place_for_graphs
    from .passes import optimize_into

    bundle = read_bundle(source)
    if request is not None:
        request.for_model(bundle.manifest.model, bundle.manifest.default_max_new_tokens)
    with (
        new_directory(output, overwrite=force) as partial,
        place_for_graphs(partial, request is not None) as place,
    ):
        manifest = optimize_into(place, bundle, target, precision, calibration)
        if request is not None:
            manifest = engines_into(partial, read_bundle(place), request)
    return manifest.passes


def _file(
    source: Path, output: Path, target: Target, compare: bool, force: bool
) -> Sequence[PassRecord]:
    from rich.console import Console

    from dragoman.optimize.onnx_file import optimize_file

    from .passes import print_passes

    with Console(stderr=True).status("loading") as status:
        records = optimize_file(
            source,
            output,
            target=target,
            compare=compare,
            overwrite=force,
            progress=lambda stage: status.update(f"{stage} ..."),
        )
    print_passes(records)
    return records
