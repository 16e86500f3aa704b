"""WordPiece (Wu et al. 2016) as BERT has it, from a file of the library or from `vocab.txt`."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from dragoman.errors import DragomanError
from dragoman.regular_files import VOCABULARY_BYTES, FileError, read_regular

from ...tokenizers import TokenizerCheckpoint, TokenizerFiles, TokenizerKind
from ...tokenizers.library import library_file
from ...tokenizers.reading import check_has_tokens, check_ids

VOCABULARY_FILE = "vocab.txt"
LONGEST_WORD = 100
"""Characters: longer words are unknown, as in Google's implementation."""


def word_piece(checkpoint: TokenizerCheckpoint) -> TokenizerFiles | None:
    """A vocabulary with a piece on each line; None if there is none."""
    path = checkpoint.directory / VOCABULARY_FILE
    if not path.exists():
        return None
    try:
        pieces = read_regular(path, VOCABULARY_BYTES).decode().split("\n")
    except (FileError, UnicodeDecodeError) as error:
        raise DragomanError(f"{path}: expected a piece on each line: {error}") from error
    if pieces[-1] == "":
        pieces.pop()
    vocabulary = {piece.rstrip("\r"): token for token, piece in enumerate(pieces)}
    check_ids(path, vocabulary, checkpoint.vocab_size)
    names = {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}
    special = {name: checkpoint.special(name, default) for name, default in names.items()}
    unknown, begin, end = special["unk"], special["cls"], special["sep"]
    check_has_tokens(path, vocabulary, unknown, begin, end)
    tokenizer = Tokenizer(
        models.WordPiece(vocabulary, unk_token=unknown, max_input_chars_per_word=LONGEST_WORD)
    )
    lower = checkpoint.setting("do_lower_case", bool)
    chinese = checkpoint.setting("tokenize_chinese_chars", bool)
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lower is not False,
        handle_chinese_chars=chinese is not False,
        strip_accents=checkpoint.setting("strip_accents", bool),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(
        (end, vocabulary[end]), (begin, vocabulary[begin])
    )
    tokenizer.add_special_tokens(
        sorted({*special.values()} & vocabulary.keys(), key=vocabulary.__getitem__)
    )
    return TokenizerFiles(tokenizer, tokenizer)


WORD_PIECE = TokenizerKind(("BertTokenizer", "DistilBertTokenizer"), (library_file, word_piece))
