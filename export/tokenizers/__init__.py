"""The tokenizers of checkpoints -> the files of a bundle.

Reading order: files, settings, vocabulary, classes, checkpoint (a Hugging Face directory),
tiktoken (encodings and ranks), multilingual, kind. Readers of one family are in `families`.
"""

from .checkpoint import TokenizerCheckpoint
from .files import PieceModel, TokenizerFiles
from .kind import Reader, TokenizerKind, choose_kind
from .vocabulary import read_trainable

__all__ = [
    "PieceModel",
    "Reader",
    "TokenizerCheckpoint",
    "TokenizerFiles",
    "TokenizerKind",
    "choose_kind",
    "read_trainable",
]
