"""The reader for a SentencePiece model alone, whose own ids the checkpoint shifts at most."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dragoman.errors import DragomanError
from dragoman.runtime.format.languages import SourceTemplate
from dragoman.runtime.texts.codecs.pieces import load_sentencepiece

from .checkpoint import TokenizerCheckpoint
from .files import PieceModel, TokenizerFiles
from .reading import check_ids


def sentencepiece_file(
    checkpoint: TokenizerCheckpoint, file_name: str, *, offset: int = 0
) -> TokenizerFiles | None:
    """One model for both sides, whose texts end with the model's end token.

    Args:
        offset: added to the id that the SentencePiece model gives a piece
    """
    path = checkpoint.directory / file_name
    if not path.exists():
        return None
    processor, pieces = read_pieces(checkpoint, path)
    end = processor.eos_id()
    if end < 0:
        raise DragomanError(f"{path}: expected a SentencePiece model with an end token, found none")
    tokenizer = PieceModel(
        path,
        {piece: token + offset for piece, token in pieces.items()},
        processor.unk_id() + offset,
    )
    check_ids(path, tokenizer.pieces, checkpoint.vocab_size)
    return TokenizerFiles(tokenizer, tokenizer, SourceTemplate((), (end,)))


def read_pieces(checkpoint: TokenizerCheckpoint, path: Path) -> tuple[Any, dict[str, int]]:
    """A SentencePiece model, and the pieces that stand for text with the model's own ids.

    Raises:
        DragomanError: the file is damaged, or the checkpoint added tokens that stand for text.
    """
    processor = load_sentencepiece(path)
    pieces = {
        processor.id_to_piece(i): i
        for i in range(processor.get_piece_size())
        if not (processor.is_control(i) or processor.is_unknown(i))
    }
    checkpoint.refuse_added_texts(pieces)
    return processor, pieces
