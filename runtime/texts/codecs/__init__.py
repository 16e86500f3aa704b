"""Texts <-> token ids for one side of a model: two kinds of tokenizer with one interface."""

from .interface import Codec, EncodedTarget, TextStream, TokenizerError, UnknownSymbolsError
from .library import LibraryCodec
from .pieces import PieceCodec

__all__ = [
    "Codec",
    "EncodedTarget",
    "LibraryCodec",
    "PieceCodec",
    "TextStream",
    "TokenizerError",
    "UnknownSymbolsError",
]
