"""g2p-en: the tokenizers of letters and phonemes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from dragoman.reference_model.recipes import g2p_en

PAD, START, END, A = 0, 1, 2, 3


@pytest.fixture
def source() -> Tokenizer:
    return g2p_en.make_source_tokenizer()


@pytest.fixture
def target() -> Tokenizer:
    return g2p_en.make_target_tokenizer()


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", [END]),
        ("a", [3, END]),
        ("abz", [3, 4, 28, END]),
        ("CaB", [5, 3, 4, END]),
        ("café", [5, 3, 8, 7, END]),
        ("cafe\u0301", [5, 3, 8, 7, END]),  # e and a combining accent
        ("ÇÅ", [5, 3, END]),
        ("  ab\n", [3, 4, END]),
    ],
)
def test_words_become_letters_and_the_end_token(
    source: Tokenizer, text: str, ids: list[int]
) -> None:
    assert source.encode(text).ids == ids


@pytest.mark.parametrize("text", ["a1", "a b", "don't", "a-b", "ß", "я", "a\nb", "日本", "a\0"])
def test_unknown_symbols_are_errors(source: Tokenizer, text: str) -> None:
    with pytest.raises(Exception, match="WordLevel error"):
        source.encode(text)


@pytest.mark.parametrize("text", ["<s>", "</s>", "a</s>b", "<pad>"])
def test_a_special_token_cannot_be_typed(source: Tokenizer, text: str) -> None:
    with pytest.raises(Exception, match="WordLevel error"):
        source.encode(text)


def test_phonemes_become_ids_in_order_and_the_end_token(target: Tokenizer) -> None:
    assert target.encode("AA").ids == [A, END]
    assert target.encode(" ".join(g2p_en.PHONEMES)).ids == [*range(3, 42), END]
    assert target.encode("").ids == [END]


@pytest.mark.parametrize("text", ["aa", "AA0", "AAB", "QQ", "AA B!"])
def test_unknown_phonemes_are_errors(target: Tokenizer, text: str) -> None:
    with pytest.raises(Exception, match="WordLevel error"):
        target.encode(text)


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([], ""),
        ([END], ""),
        ([A, A + 6, END], "AA B"),
        ([A, A + 6], "AA B"),
        ([START, A, PAD, A + 38, END, PAD], "AA ZH"),
    ],
)
def test_ids_become_phonemes_without_special_tokens(
    target: Tokenizer, ids: list[int], text: str
) -> None:
    assert target.decode(ids) == text


def test_decoding_undoes_encoding(target: Tokenizer) -> None:
    text = "D R AE G AH M AH N"
    assert target.decode(target.encode(text).ids) == text


def test_vocabularies_are_those_of_the_model(source: Tokenizer, target: Tokenizer) -> None:
    config = g2p_en.RECIPE.config
    assert source.get_vocab_size() == config.source_vocab_size == 29
    assert target.get_vocab_size() == config.target_vocab_size == 42
    for tokenizer in (source, target):
        assert tokenizer.token_to_id("<pad>") == config.pad_token_id
        assert tokenizer.token_to_id("<s>") == config.start_token_id
        assert tokenizer.token_to_id("</s>") == config.end_token_id


def test_saving_preserves_a_tokenizer(source: Tokenizer, target: Tokenizer, tmp_path: Path) -> None:
    for tokenizer, text in ((source, " DragómaN"), (target, "D R AE G")):
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        again = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        ids = tokenizer.encode(text).ids
        assert again.encode(text).ids == ids
        assert again.decode(ids) == tokenizer.decode(ids)
