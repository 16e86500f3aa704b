"""The tokenizers beside checkpoints of Dragoman, and beside state dictionaries."""

from __future__ import annotations

from pathlib import Path

from dragoman.errors import DragomanError
from dragoman.reference_model import ModelConfig
from dragoman.reference_model.recipes.recipe import SOURCE_TOKENIZER_FILE, TARGET_TOKENIZER_FILE

from .files import TokenizerFiles
from .reading import read_library_file


def find_dragoman_tokenizers(directory: Path, config: ModelConfig) -> TokenizerFiles | None:
    """Two files of the `tokenizers` library, one for each side; None if there are none.

    Raises:
        DragomanError: one file of the two is missing, a file is damaged, or ids are outside the
            model's vocabulary.
    """
    names = (SOURCE_TOKENIZER_FILE, TARGET_TOKENIZER_FILE)
    source, target = (directory / name for name in names)
    present = [source.exists(), target.exists()]
    if not any(present):
        return None
    if not all(present):
        raise DragomanError(
            f"{directory}: expected both {' and '.join(names)}, or neither, found one"
        )
    read_library_file(source, config.source_vocab_size or config.target_vocab_size)
    read_library_file(target, config.target_vocab_size)
    return TokenizerFiles(source, target)
