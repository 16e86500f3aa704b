"""Texts to token ids and back, one side of a model: two kinds of tokenizer, one interface."""

from .interface import Codec, TextStream, UnknownSymbolsError
from .library import LibraryCodec
from .pieces import PieceCodec

__all__ = ["Codec", "LibraryCodec", "PieceCodec", "TextStream", "UnknownSymbolsError"]
