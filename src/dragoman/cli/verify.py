"""`dragoman verify`"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from .options import backend_option, inputs_option, limit_option, threads_option


@click.command(short_help="Check that a bundle computes what its checkpoint does.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("checkpoint")
@inputs_option
@limit_option
@backend_option
@threads_option
@click.option(
    "--record/--no-record",
    default=None,
    help="Write the figures into the manifest [yes, but with --limit].",
)
def verify(
    bundle: Path,
    checkpoint: str,
    inputs: Path | None,
    limit: int | None,
    backend: str | None,
    threads: int | None,
    record: bool | None,
) -> None:
    """Compare BUNDLE with the PyTorch model of CHECKPOINT: tensors, then tokens, then the task.

    At fp32 every free-running greedy token must be the same. Exit status 1 if parity fails.

    \b
    dragoman verify bundles/g2p-en g2p-en
    """
    from dragoman import DragomanError
    from dragoman.runtime import read_bundle
    from dragoman.runtime.format.bundle import write_manifest

    from .checkpoints import open_checkpoint, parity_inputs
    from .exporting import (
        ParityFailedError,
        failure,
        loaded,
        print_parity,
        verify_model,
        where_it_differs,
    )

    read = read_bundle(bundle)
    manifest = read.manifest
    opened = open_checkpoint(checkpoint)
    stated = {k: v for k, v in manifest.architecture.items() if k != "family"}
    if stated != opened.model.config.to_dict():
        raise DragomanError(
            f"{bundle} was not made from a model like {checkpoint}: their configurations differ in "
            + ", ".join(
                name
                for name, value in opened.model.config.to_dict().items()
                if stated.get(name) != value
            )
        )
    compared = parity_inputs(opened, inputs, limit)
    with loaded(read, threads, backend) as (model, what):
        parity = verify_model(model, opened, compared, what)
    print_parity(parity)
    if record if record is not None else limit is None:
        write_manifest(dataclasses.replace(manifest, parity=parity), bundle)
    if not parity.passed:
        where = where_it_differs(bundle, opened, compared)
        raise ParityFailedError(f"{failure(parity)}; {where}")
