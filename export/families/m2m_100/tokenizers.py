"""The tokenizers of M2M100 and of NLLB, which name their languages differently."""

from __future__ import annotations

from functools import partial

from dragoman.runtime.texts.codecs.pieces import load_sentencepiece

from ...tokenizers import PieceModel, TokenizerCheckpoint, TokenizerFiles, TokenizerKind
from ...tokenizers.multilingual import (
    FAIRSEQ_MODEL,
    fairseq_pieces,
    has_languages,
    multilingual_files,
    multilingual_library_file,
)
from ...tokenizers.reading import all_present, check_has_tokens, check_ids, read_vocabulary
from .languages import M2M_100_LANGUAGES, NLLB_LANGUAGES, WMT21_LANGUAGES


def _numbered_pieces(checkpoint: TokenizerCheckpoint) -> TokenizerFiles | None:
    """A SentencePiece model and a vocabulary that numbers its pieces; the languages come after."""
    if not all_present(checkpoint.directory, FAIRSEQ_MODEL, "vocab.json"):
        return None
    model, path = checkpoint.directory / FAIRSEQ_MODEL, checkpoint.directory / "vocab.json"
    vocabulary = read_vocabulary(path, checkpoint.vocab_size)
    names = ("bos", "<s>"), ("pad", "<pad>"), ("eos", "</s>"), ("unk", "<unk>")
    special = [checkpoint.special(*name) for name in names]
    end, unknown = special[2:]
    check_has_tokens(path, vocabulary, end, unknown)
    of_wmt21 = checkpoint.settings.get("language_codes") == "wmt21"
    languages = WMT21_LANGUAGES if of_wmt21 else M2M_100_LANGUAGES
    tokens = languages.tokens_from(len(vocabulary), checkpoint.added_tokens())
    check_ids(path, tokens, checkpoint.vocab_size)
    load_sentencepiece(model)
    hidden = {*special, *map(languages.token, tokens)}
    pieces = {piece: token for piece, token in vocabulary.items() if piece not in hidden}
    checkpoint.refuse_added_texts(pieces)
    tokenizer = PieceModel(model, pieces, vocabulary[unknown])
    return multilingual_files(checkpoint, languages, tokenizer, tokens, vocabulary[end])


def _suits_nllb(checkpoint: TokenizerCheckpoint) -> bool:
    """By the languages that are listed; if there are none, only M2M100 has a `vocab.json`."""
    if has_languages(checkpoint, NLLB_LANGUAGES):
        return True
    has_vocabulary = (checkpoint.directory / "vocab.json").exists()
    return not has_vocabulary and not has_languages(checkpoint, M2M_100_LANGUAGES)


TOKENIZERS = (
    TokenizerKind(
        ("NllbTokenizer",),
        (
            partial(multilingual_library_file, languages=NLLB_LANGUAGES),
            partial(fairseq_pieces, languages=NLLB_LANGUAGES),
        ),
        NLLB_LANGUAGES,
        suits=_suits_nllb,
    ),
    TokenizerKind(
        ("M2M100Tokenizer",),
        (_numbered_pieces, partial(multilingual_library_file, languages=M2M_100_LANGUAGES)),
        M2M_100_LANGUAGES,
    ),
)
