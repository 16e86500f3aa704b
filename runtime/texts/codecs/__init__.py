"""Tokenizers: files of the `tokenizers` library, or SentencePiece models with a vocabulary."""

from .interface import (
    Codec,
    EncodedSource,
    EncodedTarget,
    TextStream,
    TokenizerError,
    UnknownSymbolsError,
)
from .library import LibraryCodec
from .pieces import PieceCodec

__all__ = [
    "Codec",
    "EncodedSource",
    "EncodedTarget",
    "LibraryCodec",
    "PieceCodec",
    "TextStream",
    "TokenizerError",
    "UnknownSymbolsError",
]
