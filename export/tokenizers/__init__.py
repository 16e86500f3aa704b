"""The tokenizers of checkpoints -> the files of a bundle."""

from .ctranslate2 import find_ctranslate2_tokenizers
from .files import PieceModel, TokenizerFiles
from .hugging_face import find_tokenizers

__all__ = ["PieceModel", "TokenizerFiles", "find_ctranslate2_tokenizers", "find_tokenizers"]
