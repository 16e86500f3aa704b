"""The tokenizers of checkpoints -> the files of a bundle. What one family does is in `families`.

Reading order: files (what is written into a bundle), reading, checkpoint (what a Hugging Face
directory states), kind, then the readers that families share: library, pieces, encodings and
tiktoken (ranks), multilingual.
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
