"""A checkpoint -> a neutral bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.export.locating import locate_checkpoint
from dragoman.progress import Progress, Silent

from .preflight import check_output

if TYPE_CHECKING:
    from dragoman.runtime import Bundle


def export(
    checkpoint: str | Path,
    output: str | Path,
    *,
    revision: str | None = None,
    attention: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Bundle:
    """Export a checkpoint to a bundle of neutral ONNX graphs: opset 24, fp32, not verified.

    Args:
        checkpoint: a directory as its library wrote it; the id of a model at the Hugging Face Hub,
            such as "Helsinki-NLP/opus-mt-en-de"; or the name of one that comes with Dragoman, such
            as "g2p-en"
        output: the bundle's directory, which appears whole or not at all
        revision: of a model at the hub: a branch, a tag or a commit; None: main
        attention: whether to add the graph that shows attention
        overwrite: whether to replace an existing bundle
        progress: told of each stage as it begins, and how much of it is done

    Raises:
        CheckpointError, ConfigError: the model cannot be read; lists all problems.
        ContractError: an exported graph breaks the graph contract.
        DragomanError: a path is wrong, or the output cannot be written.
    """
    progress, output = progress or Silent(), Path(output)
    check_output(output, overwrite)
    located = locate_checkpoint(checkpoint, revision, progress)

    from dragoman.export.neutral_bundle import export_bundle
    from dragoman.export.opened_checkpoint import open_checkpoint
    from dragoman.runtime.format.bundle import Bundle
    from dragoman.runtime.format.writing import new_directory

    progress.stage("reading the checkpoint")
    opened = open_checkpoint(located)
    with new_directory(output, overwrite=overwrite) as partial:
        bundle = export_bundle(
            opened.model,
            partial,
            name=opened.name,
            tokenizers=opened.tokenizers,
            notes=opened.notes,
            origin=opened.origin,
            attention=attention,
            progress=progress.stage,
        )
    return Bundle(output, bundle.manifest)
