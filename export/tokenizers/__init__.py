"""The tokenizers of checkpoints -> the files of a bundle.

Reading order: files, checkpoint (the settings of a Hugging Face directory), kind; then the readers
that families share: readers, encodings and tiktoken (ranks), multilingual. The readers of a single
family are in `families`.
"""

from .checkpoint import TokenizerCheckpoint
from .files import PieceModel, TokenizerFiles
from .kind import Reader, TokenizerKind, choose_kind

__all__ = [
    "PieceModel",
    "Reader",
    "TokenizerCheckpoint",
    "TokenizerFiles",
    "TokenizerKind",
    "choose_kind",
]
