"""Compares what a bundle holds with its checkpoint, without running it.

Reading order: built_as, settings; tokenizer_behaviour, tokenizers; checkpoint_weights, weights.
"""

import tempfile

from dragoman.errors import DragomanError
from dragoman.export.checkpoints import OpenedCheckpoint
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.parity import Check

from .settings import compare_settings
from .tokenizers import compare_tokenizers


def compare_stored(bundle: Bundle, checkpoint: OpenedCheckpoint) -> list[Check]:
    """Compare settings and, if there are any, tokenizers.

    Raises:
        DragomanError: there is no room to write the checkpoint's tokenizers.
    """
    try:
        found = [compare_settings(bundle, checkpoint), compare_tokenizers(bundle, checkpoint)]
    except OSError as error:
        where = tempfile.gettempdir()
        raise DragomanError(f"cannot write tokenizers to compare in {where}: {error}") from error
    return [check for check in found if check is not None]


__all__ = ["compare_stored"]
