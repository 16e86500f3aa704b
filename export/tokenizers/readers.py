"""Readers that families share: `tokenizer.json`, byte-level pair encoding, SentencePiece."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from dragoman.errors import DragomanError
from dragoman.files.regular_files import VOCABULARY_BYTES, check_regular
from dragoman.runtime.format.texts import SourceTemplate
from dragoman.runtime.texts.codecs.pieces import load_sentencepiece
from dragoman.runtime.texts.codecs.tokenizer_file import panics_as_errors

from .checkpoint import TokenizerCheckpoint
from .files import LIBRARY_FILE, PieceModel, TokenizerFiles, all_present, check_ids, read_vocabulary

SPECIAL_TOKENS = ("bos", "eos", "unk", "pad", "cls", "sep", "mask")


def library_file(checkpoint: TokenizerCheckpoint) -> TokenizerFiles | None:
    """Use `tokenizer.json` unchanged for both sides."""
    if checkpoint.library is None:
        return None
    path = checkpoint.directory / LIBRARY_FILE
    return TokenizerFiles(path, path)


def byte_level(checkpoint: TokenizerCheckpoint, defaults: Mapping[str, str]) -> Tokenizer | None:
    """Read byte-level pair encoding from `vocab.json` and `merges.txt`; None without them.

    Args:
        defaults: the family's special tokens, for fields missing in tokenizer_config.json
    """
    directory = checkpoint.directory
    if not all_present(directory, "vocab.json", "merges.txt"):
        return None
    path, merges = directory / "vocab.json", directory / "merges.txt"
    added = checkpoint.added_tokens()
    vocabulary = read_vocabulary(path, checkpoint.vocab_size) | added
    check_ids(path, vocabulary, checkpoint.vocab_size)
    check_regular(merges, VOCABULARY_BYTES)
    try:
        with panics_as_errors():
            pairs = models.BPE.read_file(str(path), str(merges))[1]
            model = models.BPE(
                vocabulary, pairs, continuing_subword_prefix="", end_of_word_suffix=""
            )
    except Exception as error:  # the library raises no narrower type
        raise DragomanError(f"{merges}: not the merges of {path.name}: {error}") from error
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space(checkpoint))
    tokenizer.decoder = decoders.ByteLevel()
    named = (checkpoint.special(name, defaults.get(name, "")) for name in SPECIAL_TOKENS)
    special = sorted({*added, *named} & vocabulary.keys(), key=vocabulary.__getitem__)
    mask = checkpoint.special("mask", defaults.get("mask", ""))
    # fairseq models were trained on masks that include the space before them.
    strips = checkpoint.strips_left("mask", mask, "mask" in defaults)
    tokenizer.add_special_tokens(
        [AddedToken(token, lstrip=strips and token == mask, normalized=False) for token in special]
    )
    return tokenizer


def prefix_space(checkpoint: TokenizerCheckpoint) -> bool:
    """Return whether tokenization adds a space before a text."""
    return bool(checkpoint.setting("add_prefix_space", bool))


def sentencepiece_file(
    checkpoint: TokenizerCheckpoint, file_name: str, *, offset: int = 0
) -> TokenizerFiles | None:
    """Read one SentencePiece model for both sides; texts end with its end token.

    Args:
        offset: difference between token ids and the ids of the SentencePiece model
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
    """Read a SentencePiece model, and its text pieces with the model's own ids.

    Raises:
        DragomanError: the file is damaged, or the checkpoint has added tokens that are not special.
    """
    processor = load_sentencepiece(path)
    pieces = {
        processor.id_to_piece(i): i
        for i in range(processor.get_piece_size())
        if not (processor.is_control(i) or processor.is_unknown(i))
    }
    checkpoint.refuse_added_texts(pieces)
    return processor, pieces
