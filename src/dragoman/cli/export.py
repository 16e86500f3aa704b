"""`dragoman export`"""

from __future__ import annotations

from pathlib import Path

import click

from .options import force_option, output_option


@click.command(short_help="Export a checkpoint to neutral ONNX graphs.")
@click.argument("checkpoint")
@output_option
@force_option
def export(checkpoint: str, output: Path, force: bool) -> None:
    """Export CHECKPOINT to a bundle of neutral ONNX graphs, without checking parity.

    CHECKPOINT is a directory as for `dragoman build`, or g2p-en. The graphs are opset 24 in the
    default domain, in fp32: the input of `dragoman optimize`.

    \b
    dragoman export g2p-en -o bundles/neutral
    """
    from dragoman import api

    from .progress import shown_progress

    with shown_progress() as progress:
        bundle = api.export(checkpoint, output, overwrite=force, progress=progress)
    for note in bundle.manifest.notes:
        click.echo(f"Warning: {note}", err=True)
    click.echo(f"Exported {output}, not verified. Next: dragoman verify {output} {checkpoint}")
