"""The tokenizers of Hugging Face directories.

`tokenizer.json` is taken as it is where there is one. Otherwise the SentencePiece model itself is
run, its pieces numbered as the family does it, or a tokenizer is put together from `vocab.json` and
`merges.txt`. Each family's conventions are those of its tokenizer in `transformers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from dragoman.errors import DragomanError
from dragoman.runtime.format.languages import SourceTemplate
from dragoman.runtime.texts.codecs.pieces import load_sentencepiece

from .checkpoint import CONFIG_FILE, TokenizerCheckpoint
from .files import PieceModel, TokenizerFiles
from .multilingual import MULTILINGUAL, Multilingual
from .reading import (
    LIBRARY_FILE,
    check_ids,
    complete,
    demand,
    known_pieces,
    read_object,
    read_vocabulary,
    without_timestamps,
)

FAMILIES = {
    "BartTokenizer": "bart",
    "BarthezTokenizer": "other",  # of mBART models that know one language only
    "M2M100Tokenizer": "m2m_100",
    "MBart50Tokenizer": "mbart_50",
    "MBartTokenizer": "mbart",
    "MT5Tokenizer": "t5",
    "MarianTokenizer": "marian",
    "NllbTokenizer": "nllb",
    "PegasusTokenizer": "pegasus",
    "RobertaTokenizer": "bart",
    "T5Tokenizer": "t5",
    "WhisperTokenizer": "whisper",
}
"""By the class of the tokenizer; others, as PreTrainedTokenizerFast, say nothing of the family."""
SENTENCEPIECE_FILES = {
    "mbart": "sentencepiece.bpe.model",
    "mbart_50": "sentencepiece.bpe.model",
    "nllb": "sentencepiece.bpe.model",
    "pegasus": "spiece.model",
    "t5": "spiece.model",
}


def find_tokenizers(
    directory: Path,
    model_type: str,
    values: Mapping[str, Any],
    *,
    source_vocab_size: int,
    target_vocab_size: int,
) -> TokenizerFiles | None:
    """The tokenizers of a Hugging Face directory, or None where there are none.

    Args:
        model_type: as config.json states it, as marian, bart, mbart, m2m_100, pegasus, t5, whisper
        values: of config.json
        source_vocab_size, target_vocab_size: of the model as read; the same where it takes no texts

    Raises:
        DragomanError: a file is damaged or of no use, half of a pair is missing, ids are outside
            the model's vocabulary, or the package sentencepiece is missing.
    """
    settings = read_object(directory / CONFIG_FILE)
    checkpoint = TokenizerCheckpoint(
        directory, values, settings, source_vocab_size, target_vocab_size
    )
    family = _family(checkpoint, model_type)
    if family == "marian" and complete(directory, "source.spm", "target.spm", "vocab.json"):
        return _marian(checkpoint)
    if family == "m2m_100" and complete(directory, "sentencepiece.bpe.model", "vocab.json"):
        return _m2m_100(checkpoint)
    if checkpoint.library is not None:
        return _library(checkpoint, checkpoint.library, family)
    name = SENTENCEPIECE_FILES.get(family)
    if name is not None and (directory / name).is_file():
        return _pieces(checkpoint, family, directory / name)
    if family in ("bart", "whisper") and complete(directory, "vocab.json", "merges.txt"):
        return _byte_level(checkpoint, family)
    return None


def _family(checkpoint: TokenizerCheckpoint, model_type: str) -> str:
    """By the class of its tokenizer, or by the model's type where the class does not tell."""
    stated = checkpoint.settings.get("tokenizer_class") or checkpoint.values.get("tokenizer_class")
    named = FAMILIES.get(str(stated).removesuffix("Fast"))
    if named is not None:
        return named
    family = _family_of_model(checkpoint, model_type)
    # A class of another name may be there because the model knows one language only.
    if stated and family in MULTILINGUAL and checkpoint.library is not None:
        return family if checkpoint.has_languages(family) else "other"
    return family


def _family_of_model(checkpoint: TokenizerCheckpoint, model_type: str) -> str:
    if model_type == "mbart" and checkpoint.vocab_size >= 250_054:  # 27 languages more
        return "mbart_50"
    if model_type == "m2m_100":  # of M2M-100 and of NLLB, which name their languages differently
        for family in ("nllb", "m2m_100"):
            if checkpoint.has_languages(family):
                return family
        return "m2m_100" if (checkpoint.directory / "vocab.json").is_file() else "nllb"
    return "t5" if model_type in ("mt5", "umt5") else model_type


def _marian(checkpoint: TokenizerCheckpoint) -> TokenizerFiles:
    """Two SentencePiece models and one vocabulary, or two, that number their pieces."""
    directory = checkpoint.directory
    if checkpoint.setting("separate_vocabs", bool):
        complete(directory, "vocab.json", "target_vocab.json")
        path = directory / "target_vocab.json"
        vocabulary = read_vocabulary(directory / "vocab.json", checkpoint.source_vocab_size)
        target_vocabulary = read_vocabulary(path, checkpoint.target_vocab_size)
    else:
        vocabulary = read_vocabulary(directory / "vocab.json", checkpoint.vocab_size)
        target_vocabulary = vocabulary
    end = checkpoint.special("eos", "</s>")
    unknown = checkpoint.special("unk", "<unk>")
    special = {end, unknown, checkpoint.special("pad", "<pad>")}
    demand(directory / "vocab.json", vocabulary, end, unknown)
    source, target = (
        PieceModel(
            directory / name,
            {piece: token for piece, token in pieces.items() if piece not in special},
            pieces.get(unknown),
            leading_code=True,
        )
        for name, pieces in (("source.spm", vocabulary), ("target.spm", target_vocabulary))
    )
    for side in (source, target):
        load_sentencepiece(side.model)
        checkpoint.refuse_added_texts(side.pieces)
    return TokenizerFiles(source, target, SourceTemplate((), (vocabulary[end],)))


def _m2m_100(checkpoint: TokenizerCheckpoint) -> TokenizerFiles:
    """A vocabulary that numbers the pieces; the languages come after it."""
    path = checkpoint.directory / "vocab.json"
    vocabulary = read_vocabulary(path, checkpoint.vocab_size)
    names = ("bos", "<s>"), ("pad", "<pad>"), ("eos", "</s>"), ("unk", "<unk>")
    special = [checkpoint.special(*name) for name in names]
    end, unknown = special[2:]
    demand(path, vocabulary, end, unknown)
    kind = "wmt21" if checkpoint.settings.get("language_codes") == "wmt21" else "m2m_100"
    family = MULTILINGUAL[kind]
    languages = family.following(len(vocabulary), checkpoint.added_tokens())
    check_ids(path, languages, checkpoint.vocab_size)
    model = checkpoint.directory / "sentencepiece.bpe.model"
    load_sentencepiece(model)
    hidden = {*special, *map(family.token, languages)}
    pieces = {piece: token for piece, token in vocabulary.items() if piece not in hidden}
    checkpoint.refuse_added_texts(pieces)
    tokenizer = PieceModel(model, pieces, vocabulary[unknown])
    return _multilingual(checkpoint, family, tokenizer, languages, vocabulary[end])


def _library(checkpoint: TokenizerCheckpoint, tokenizer: Tokenizer, family: str) -> TokenizerFiles:
    path = checkpoint.directory / LIBRARY_FILE
    if family == "whisper":
        return TokenizerFiles(None, without_timestamps(tokenizer))
    if family not in MULTILINGUAL:
        return TokenizerFiles(path, path)
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    end = checkpoint.special("eos", "</s>")
    demand(path, vocabulary, end)
    languages = MULTILINGUAL[family].among(vocabulary)
    if not languages:
        raise DragomanError(f"{path}: expected the tokens of languages, found none")
    return _multilingual(checkpoint, MULTILINGUAL[family], path, languages, vocabulary[end])


def _pieces(checkpoint: TokenizerCheckpoint, family: str, path: Path) -> TokenizerFiles:
    """A SentencePiece model alone: the family says how its pieces are numbered."""
    processor = load_sentencepiece(path)
    size, pieces = processor.get_piece_size(), known_pieces(processor)
    added = checkpoint.added_tokens()
    checkpoint.refuse_added_texts(pieces)
    if family in MULTILINGUAL:
        # fairseq's <s>, <pad>, </s> and <unk> stand where the model has <unk>, <s> and </s>.
        tokenizer = PieceModel(path, {piece: token + 1 for piece, token in pieces.items()}, 3)
        languages = MULTILINGUAL[family].following(size + 1, added)
        check_ids(path, {**tokenizer.pieces, **languages}, checkpoint.vocab_size)
        return _multilingual(checkpoint, MULTILINGUAL[family], tokenizer, languages, 2)
    offset, end = 0, processor.eos_id()
    if family == "pegasus":
        offset = checkpoint.setting("offset", int) or 103
    if end < 0:
        raise DragomanError(f"{path}: expected a SentencePiece model with an end token, found none")
    tokenizer = PieceModel(
        path,
        {piece: token + offset for piece, token in pieces.items()},
        processor.unk_id() + offset,
    )
    check_ids(path, tokenizer.pieces, checkpoint.vocab_size)
    return TokenizerFiles(tokenizer, tokenizer, SourceTemplate((), (end,)))


def _byte_level(checkpoint: TokenizerCheckpoint, family: str) -> TokenizerFiles:
    """Byte-level pair encoding from its vocabulary and its merges."""
    directory, names = checkpoint.directory, ("bos", "eos", "unk", "pad", "cls", "sep", "mask")
    path, merges = directory / "vocab.json", directory / "merges.txt"
    added = checkpoint.added_tokens()
    vocabulary = read_vocabulary(path, checkpoint.vocab_size) | added
    check_ids(path, vocabulary, checkpoint.vocab_size)
    try:
        pairs = models.BPE.read_file(str(path), str(merges))[1]
        model = models.BPE(vocabulary, pairs, continuing_subword_prefix="", end_of_word_suffix="")
    except Exception as error:  # the library raises no narrower type
        raise DragomanError(f"{merges}: not the merges of {path.name}: {error}") from error
    tokenizer = Tokenizer(model)
    prefix_space = bool(checkpoint.setting("add_prefix_space", bool))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    defaults = {"eos": "<|endoftext|>"} if family == "whisper" else _BART_TOKENS
    special = {*added, *(checkpoint.special(name, defaults.get(name, "")) for name in names)}
    tokenizer.add_special_tokens(sorted(special & vocabulary.keys(), key=vocabulary.__getitem__))
    if family == "whisper":
        return TokenizerFiles(None, tokenizer)
    end, begin = (checkpoint.special(name, _BART_TOKENS[name]) for name in ("sep", "cls"))
    demand(path, vocabulary, end, begin)
    tokenizer.post_processor = processors.RobertaProcessing(
        (end, vocabulary[end]), (begin, vocabulary[begin]), add_prefix_space=prefix_space
    )
    return TokenizerFiles(tokenizer, tokenizer)


_BART_TOKENS = {
    "bos": "<s>",
    "eos": "</s>",
    "unk": "<unk>",
    "pad": "<pad>",
    "cls": "<s>",
    "sep": "</s>",
    "mask": "<mask>",
}


def _multilingual(
    checkpoint: TokenizerCheckpoint,
    family: Multilingual,
    tokenizer: Path | PieceModel,
    languages: dict[str, int],
    end: int,
) -> TokenizerFiles:
    defaults = read_object(checkpoint.directory / "generation_config.json")
    return TokenizerFiles(
        tokenizer,
        tokenizer,
        family.template(end, legacy=bool(checkpoint.setting("legacy_behaviour", bool))),
        family.languages(
            languages,
            source=checkpoint.setting("src_lang", str),
            target=checkpoint.setting("tgt_lang", str),
            decoding={**checkpoint.values, **defaults},
        ),
    )
