"""Tokenizers of targets, in every form in which texts are put together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sentencepiece
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from dragoman.runtime.texts.tokenizer import TextCodec

CORPUS = ["the cat sat on the mat", "a cat, a dog and the bird", "naïve café: où ?", "x y z"] * 20
FORMS = ("sentencepiece", "metaspace", "byte-level", "words", "word ends")


@pytest.fixture(scope="session", params=FORMS)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    """A codec whose targets have fewer than 400 tokens, the end token being 2."""
    directory = tmp_path_factory.mktemp(request.param.replace(" ", "-"))
    if request.param == "sentencepiece":
        return _sentencepiece(directory)
    file = directory / "tokenizer.json"
    _library(request.param).save(str(file))
    return TextCodec(None, file)


def _sentencepiece(directory: Path) -> TextCodec:
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
    return TextCodec(model, model, source_vocabulary=vocabulary, target_vocabulary=vocabulary)


def _library(form: str) -> Tokenizer:
    unknown = "<unk>"
    special = ["<pad>", "<s>", "</s>", unknown]
    if form == "metaspace":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer: trainers.Trainer = trainers.UnigramTrainer(
            vocab_size=80, special_tokens=special, unk_token=unknown, show_progress=False
        )
    elif form == "byte-level":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=300,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    elif form == "words":
        tokenizer = Tokenizer(models.WordLevel(unk_token=unknown))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer = trainers.WordLevelTrainer(special_tokens=special, show_progress=False)
    else:
        tokenizer = Tokenizer(models.BPE(unk_token=unknown, end_of_word_suffix="</w>"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.decoder = decoders.BPEDecoder()
        trainer = trainers.BpeTrainer(
            vocab_size=90,
            special_tokens=special,
            end_of_word_suffix="</w>",
            show_progress=False,
        )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer
