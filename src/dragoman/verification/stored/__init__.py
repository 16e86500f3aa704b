"""What a bundle holds compared with its checkpoint, without running it.

Reading order: built_as, settings; tokenizer_behaviour, tokenizers; checkpoint_weights,
weights.
"""

from dragoman.export.opened_checkpoint import OpenedCheckpoint
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.records import Check

from .settings import compare_settings
from .tokenizers import compare_tokenizers


def compare_stored(bundle: Bundle, checkpoint: OpenedCheckpoint) -> list[Check]:
    """Compare settings and, if there are any, tokenizers."""
    found = [compare_settings(bundle, checkpoint), compare_tokenizers(bundle, checkpoint)]
    return [check for check in found if check is not None]


__all__ = ["compare_stored"]
