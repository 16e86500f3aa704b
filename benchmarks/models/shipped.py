"""The shipped trained model, for benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dragoman.reference_model import Transformer
    from dragoman.verification.inputs.parity_inputs import ParityInputs

MODEL = "g2p-en"


def exported(directory: Path) -> Path:
    """Export the model to a new directory."""
    from dragoman.export import export_bundle
    from dragoman.export.checkpoints import open_checkpoint
    from dragoman.export.locating import locate_checkpoint

    opened = open_checkpoint(locate_checkpoint(MODEL))
    directory.mkdir()
    export_bundle(opened.model, directory, name=MODEL, tokenizers=opened.tokenizers)
    return directory


def held_out(count: int) -> tuple[Transformer, ParityInputs]:
    """Return the model, and held-out words to verify a bundle on."""
    from dragoman.export.checkpoints import open_checkpoint
    from dragoman.export.locating import locate_checkpoint
    from dragoman.reference_model import Transformer
    from dragoman.verification.comparison import Comparison
    from dragoman.verification.inputs.choosing import inputs_for

    opened = open_checkpoint(locate_checkpoint(MODEL))
    assert isinstance(opened.model, Transformer)
    return opened.model, inputs_for(opened, Comparison(limit=count))
