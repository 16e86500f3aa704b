"""Tokenizers of targets, in every form in which texts are put together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sentencepiece
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from dragoman.runtime.format.texts import SourceTemplate
from dragoman.runtime.texts.tokenizer import TextCodec

CORPUS = ["the cat sat on the mat", "a cat, a dog and the bird", "naïve café: où ?", "x y z"] * 20
FORMS = ("sentencepiece", "metaspace", "byte-level", "words", "word ends")


@pytest.fixture(scope="session", params=FORMS)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    """A codec whose targets have fewer than 400 tokens, the end token being 2."""
    directory = tmp_path_factory.mktemp(request.param.replace(" ", "-"))
    if request.param == "sentencepiece":
        return _sentencepiece(directory)
    return TextCodec(None, _file(request.param, directory))


@pytest.fixture(scope="session", params=FORMS)
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    """A codec of sources in the same form, with two special tokens before and one after a text."""
    directory = tmp_path_factory.mktemp(request.param.replace(" ", "-"))
    template = SourceTemplate((1, 0), (2,))
    if request.param == "sentencepiece":
        return _sentencepiece(directory, template)
    file = _file(request.param, directory)
    return TextCodec(file, file, template=template)


def _file(form: str, directory: Path) -> Path:
    file = directory / "tokenizer.json"
    _library(form).save(str(file))
    return file


def _sentencepiece(directory: Path, template: SourceTemplate | None = None) -> TextCodec:
    """Unknown characters become bytes; the vocabulary has pieces that the model does not know."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_prefix=str(directory / "target"),
        model_type="bpe",
        vocab_size=330,
        byte_fallback=True,
        minloglevel=2,
    )
    model = directory / "target.model"
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    pieces = {processor.id_to_piece(i): i + 5 for i in range(3, processor.get_piece_size())}
    vocabulary = directory / "vocabulary.json"
    vocabulary.write_text(json.dumps({"unknown": 3, "pieces": pieces | {"<unk>": 3, "▁cow": 4}}))
    return TextCodec(
        model,
        model,
        source_vocabulary=vocabulary,
        target_vocabulary=vocabulary,
        template=template,
    )


def _library(form: str) -> Tokenizer:
    """Its vocabulary is stated, since what trainers make of ties is not."""
    unknown = "<unk>"
    special = ["<pad>", "<s>", "</s>", unknown]
    letters = sorted(set("".join(CORPUS)) - {" "})
    if form == "metaspace":
        pieces = ["at", "cat", "\u2581cat", "\u2581the", "he", "og", "\u2581d", "ird", "\u2581and"]
        scores = [(piece, 0.0) for piece in special] + [(piece, -3.0) for piece in pieces]
        scores += [(letter, -6.0) for letter in ("\u2581", *letters)]
        tokenizer = Tokenizer(models.Unigram(scores, unk_id=3))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
    elif form == "byte-level":
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        merges = [
            "a t",
            "c at",
            "\u0120 cat",
            "t h",
            "th e",
            "\u0120 the",
            "o g",
            "d og",
            "\u00c3 \u00a9",
        ]
        tokenizer = _bpe([*special, *alphabet], merges)
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    elif form == "words":
        words = sorted({word for text in CORPUS for word in text.split()})
        symbols = [*special, *words]
        vocabulary = {symbol: token for token, symbol in enumerate(symbols)}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        merges = [
            "a t</w>",
            "c at</w>",
            "s at</w>",
            "t h",
            "th e</w>",
            "o g</w>",
            "d og</w>",
            "f \u00e9",
        ]
        symbols = [*special, *letters, *(f"{letter}</w>" for letter in letters)]
        tokenizer = _bpe(symbols, merges, unk_token=unknown, end_of_word_suffix="</w>")
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.decoder = decoders.BPEDecoder()
    tokenizer.add_special_tokens(special)
    return tokenizer


def _bpe(symbols: list[str], merges: list[str], **options: str) -> Tokenizer:
    """
    Args:
        merges: two symbols each, with a space between
    """
    pairs = [(first, second) for first, second in map(str.split, merges)]
    symbols = [*symbols, *(first + second for first, second in pairs)]
    vocabulary = {symbol: token for token, symbol in enumerate(symbols)}
    return Tokenizer(models.BPE(vocabulary, pairs, **options))
