"""`dragoman export`"""

from __future__ import annotations

from pathlib import Path

import click

from .messages import tell
from .options import attention_option, force_option, output_option, revision_option


@click.command(short_help="Export a checkpoint to neutral ONNX graphs.")
@click.argument("checkpoint")
@output_option
@revision_option
@attention_option
@force_option
def export(
    checkpoint: str, output: Path, revision: str | None, with_attention: bool, force: bool
) -> None:
    """Export CHECKPOINT to a bundle of neutral ONNX graphs, without checking parity.

    CHECKPOINT is as for `dragoman build`. The graphs are opset 24 in the
    default domain, in fp32: the input of `dragoman optimize`.

    \b
    dragoman export g2p-en -o bundles/neutral
    """
    from dragoman import api

    from .progress import shown_progress

    with shown_progress() as progress:
        bundle = api.export(
            checkpoint,
            output,
            revision=revision,
            attention=with_attention,
            overwrite=force,
            progress=progress,
        )
    for note in bundle.manifest.notes:
        tell(f"Warning: {note}")
    model = checkpoint if revision is None else f"{checkpoint} --revision {revision}"
    click.echo(f"Exported {output}, not verified. Next: dragoman verify {output} {model}")
