"""Words that neither vocabulary has, from a text to the output that they are copied to."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from dragoman.export import TokenizerFiles, export_bundle
from dragoman.reference_model import ModelConfig
from dragoman.runtime import AsyncModel, Bundle, Model, Result, load

from ...random_weights import random_transformer

KNOWN = ("the", "cat", "met", "dog")
UNKNOWN, CAT = 3, 5
UNKNOWN_WORD = "<unk>"
TEXT = "the Zoltan met  Quynh dog"


def words() -> Tokenizer:
    symbols = ("<pad>", "<s>", "</s>", UNKNOWN_WORD, *KNOWN)
    vocabulary = {symbol: token for token, symbol in enumerate(symbols)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN_WORD))
    tokenizer.add_special_tokens(list(symbols[:4]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 2)]
    )
    return tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    directory = tmp_path_factory.mktemp("words")
    files = TokenizerFiles(directory / "source.json", directory / "target.json")
    for file in (files.source, files.target):
        assert file is not None
        words().save(str(file))
    config = ModelConfig(
        source_vocab_size=8,
        target_vocab_size=8,
        encoder_layers=1,
        decoder_layers=2,
        d_model=20,
        num_heads=2,
        d_ff=24,
        max_source_positions=16,
        max_target_positions=12,
        dropout=0.0,
    )
    (directory / "bundle").mkdir()
    random = random_transformer(config, seed=7)
    export_bundle(random, directory / "bundle", name="words", tokenizers=files, attention=True)
    return load(directory / "bundle", threads=1)


async def read_asynchronously(bundle: Bundle, result: Result) -> object:
    async with await AsyncModel.load(bundle, workers=1, threads=1) as model:
        pairs = [(TEXT, result.tokens)]
        aligned = await model.align(pairs, unknown_replaced=True)
        return aligned, await model.replace_unknown(TEXT, result, by="token")


@pytest.mark.parametrize("tokens", [(UNKNOWN, CAT, UNKNOWN), (CAT,), (UNKNOWN,) * 5])
def test_unknown_words_are_counted_and_copied(model: Model, tokens: tuple[int, ...]) -> None:
    """The oracle: every token is a word on both sides, and of the source the last is the end."""
    weights = model.attention(TEXT, tokens, end_token=False).aligning
    attended = weights[:, :-1].argmax(1).tolist()
    assert weights.shape == (len(tokens), 6)
    source = TEXT.split()
    (alignment,) = model.align([(TEXT, tokens)], unknown_replaced=True)
    assert alignment.source == tuple(source)
    assert alignment.pairs == tuple((word, n) for n, word in enumerate(attended))
    expected = [
        source[word] if token == UNKNOWN else KNOWN[token - 4]
        for token, word in zip(tokens, attended, strict=True)
    ]
    result = dataclasses.replace(model.generate([TEXT])[0], tokens=tokens)
    if UNKNOWN in tokens:
        assert model.replace_unknown(TEXT, result) == " ".join(expected)
    assert asyncio.run(read_asynchronously(model.bundle, result)) == (
        [alignment],
        model.replace_unknown(TEXT, result, by="token"),
    )
    if len(tokens) == 5:
        assert {"Zoltan", "Quynh"} & set(expected)
