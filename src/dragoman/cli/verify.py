"""`dragoman verify`"""

from __future__ import annotations

from pathlib import Path

import click

from .options import backend_option, inputs_option, limit_option, revision_option, threads_option


class VerificationFailedError(click.ClickException):
    """Parity does not hold: exit status 1."""

    exit_code = 1


@click.command(short_help="Check that a bundle computes what its checkpoint does.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("checkpoint")
@revision_option
@inputs_option
@limit_option
@backend_option
@threads_option
@click.option(
    "--record/--no-record",
    default=None,
    help="Write the figures into the manifest [yes, unless --limit is given].",
)
def verify(
    bundle: Path,
    checkpoint: str,
    revision: str | None,
    inputs: Path | None,
    limit: int | None,
    backend: str | None,
    threads: int | None,
    record: bool | None,
) -> None:
    """Compare BUNDLE with the PyTorch model of CHECKPOINT: tensors, then tokens, then the task.

    CHECKPOINT is as for `dragoman build`. At fp32 every free-running greedy token must be the same.
    Exit status 1 if parity fails.

    \b
    dragoman verify bundles/g2p-en g2p-en
    """
    from dragoman import DragomanError, api

    from .progress import shown_progress
    from .tables import print_parity

    with shown_progress() as progress:
        verification = api.verify(
            bundle,
            checkpoint,
            revision=revision,
            inputs=inputs,
            limit=limit,
            backend=backend,
            threads=threads,
            record=record,
            progress=progress,
        )
    print_parity(verification.parity)
    if verification.problem is not None:
        if verification.not_recorded is not None:
            click.echo(f"Warning: {verification.not_recorded}", err=True)
        raise VerificationFailedError(verification.problem)
    if verification.not_recorded is not None:
        raise DragomanError(verification.not_recorded)
