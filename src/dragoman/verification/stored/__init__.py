"""Compares what a bundle holds with its checkpoint, without running it."""

import tempfile

from dragoman.errors import DragomanError
from dragoman.export.checkpoints import OpenedCheckpoint
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.parity import Check

from ..inputs.parity_inputs import ParityInputs
from .settings import compare_settings
from .texts import compare_texts
from .tokenizers import compare_tokenizers


def compare_stored(
    bundle: Bundle, checkpoint: OpenedCheckpoint, inputs: ParityInputs
) -> list[Check]:
    """Compare settings and, if there are any, tokenizers, on texts as well."""
    try:
        found = [compare_settings(bundle, checkpoint), compare_tokenizers(bundle, checkpoint)]
        if all(check is None or check.passed for check in found):
            found.append(compare_texts(bundle, checkpoint, inputs))
    except OSError as error:
        where = tempfile.gettempdir()
        raise DragomanError(f"cannot write tokenizers to compare in {where}: {error}") from error
    return [check for check in found if check is not None]


__all__ = ["compare_stored"]
