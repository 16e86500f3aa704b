"""`dragoman build`"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .engine_options import Sizes, engine_options, requested
from .options import (
    calibration_option,
    force_option,
    inputs_option,
    limit_option,
    output_option,
    precision_option,
    target_option,
    threads_option,
)

if TYPE_CHECKING:
    from dragoman.runtime.format.manifest import Precision, Target


@click.command(short_help="Export, optimize and prove parity: a bundle to deploy.")
@click.argument("checkpoint")
@output_option
@target_option
@precision_option
@calibration_option
@engine_options
@click.option(
    "--refit",
    type=click.Path(path_type=Path),
    metavar="BUNDLE",
    help="Engines: take this bundle's, with the checkpoint's weights.",
)
@inputs_option
@limit_option
@threads_option
@click.option(
    "--allow-failed-parity",
    is_flag=True,
    help="Keep a bundle that failed, marked so in its manifest.",
)
@force_option
def build(
    checkpoint: str,
    output: Path,
    target: Target | None,
    precision: Precision,
    calibration: Path | None,
    profiles: tuple[Sizes, ...],
    source_length: Sizes | None,
    capacity: int | None,
    compute_capabilities: tuple[str, ...],
    refittable: bool,
    refit: Path | None,
    inputs: Path | None,
    limit: int | None,
    threads: int | None,
    allow_failed_parity: bool,
    force: bool,
) -> None:
    """Export CHECKPOINT, optimize it for a target and verify the result: OUTPUT appears only if
    parity holds.

    CHECKPOINT is a directory of Hugging Face, CTranslate2 or this project, or g2p-en, the model
    that comes along. Parity is checked against PyTorch on the checkpoint's held-out data, on
    --inputs, or on random ones where there is neither. Exit status 1 if it fails. Engines are built
    after that: the numbers are checked on ONNX Runtime first, and neither needs a GPU.

    \b
    dragoman build g2p-en -o bundles/g2p-en
    dragoman build g2p-en -o bundles/g2p-en-int8 --target cpu --precision int8
    dragoman build g2p-en -o bundles/g2p-en-rtx --target tensorrt-rtx --precision fp16
    """
    from dragoman import DragomanError
    from dragoman.optimize.tensorrt.refit import check_built_for_it
    from dragoman.runtime.format.bundle import new_directory, read_bundle, write_manifest

    from .checkpoints import open_checkpoint, parity_inputs
    from .engines import engines_into, place_for_graphs, refit_into
    from .exporting import (
        ParityFailedError,
        build_into,
        failure,
        loaded,
        print_parity,
        verify_model,
        where_it_differs,
    )
    from .passes import chosen_target

    old = None if refit is None else read_bundle(refit)
    if old is not None:
        check_built_for_it(old)
        if profiles or source_length or capacity or compute_capabilities or refittable:
            raise DragomanError(f"--refit: the engines of {refit} stay what they are built for")
        target, precision = old.manifest.target, old.manifest.precision
    chosen = chosen_target(target, precision)
    request = requested(
        chosen, precision, profiles, source_length, capacity, compute_capabilities, refittable
    )
    opened = open_checkpoint(checkpoint)
    if request is not None:  # before anything takes time
        request.for_model(opened.model.config, opened.model.config.max_target_positions)
    compared = parity_inputs(opened, inputs, limit)
    with (
        new_directory(output, overwrite=force) as partial,
        place_for_graphs(partial, request is not None) as place,
    ):
        manifest = build_into(place, opened, chosen, precision, calibration)
        graphs = read_bundle(place)
        with loaded(graphs, threads, "onnxruntime") as (model, backend):
            parity = verify_model(model, opened, compared, backend)
        print_parity(parity)
        if not parity.passed:
            wrong = f"{failure(parity)}; {where_it_differs(place, opened, compared)}"
        if not parity.passed and not allow_failed_parity:
            raise ParityFailedError(f"{wrong}; {output} was not written")
        if old is not None:
            manifest = refit_into(partial, old, graphs)
        elif request is not None:
            manifest = engines_into(partial, graphs, request)
        write_manifest(dataclasses.replace(manifest, parity=parity), partial)
    if not parity.passed:
        raise ParityFailedError(f"{wrong}; {output} is marked as failed")
    runs = f"dragoman run {output} ..."
    following = f"dragoman inspect {output}" if precision == "bf16" else runs
    what = "parity passed" + (" before its engines were built" if request is not None else "")
    click.echo(f"Built {output}, {what}. Next: {following}")
