"""White space around and within a text does not change its tokens: shipped and trained tokenizers.

SentencePiece's own normalization, `nmt_nfkc`, is the oracle.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sentencepiece
from tokenizers import Tokenizer

from dragoman.reference_model.pretrained import find_checkpoint
from dragoman.reference_model.recipes import Example, g2p_en, read_examples
from dragoman.reference_model.recipes.tokenizers import Vocabulary, train_tokenizers
from dragoman.runtime.texts.codecs import LibraryCodec

CLEAN = "The king said, Go up."
UNCLEAN = {
    "trailing space": f"{CLEAN} ",
    "line end": f"{CLEAN}\n",
    "windows line end": f"{CLEAN}\r\n",
    "leading spaces": f"  {CLEAN}",
    "double space": CLEAN.replace(" ", "  "),
    "tab": CLEAN.replace(" ", "\t"),
    "line break": CLEAN.replace(" ", " \n "),
    "no-break space": CLEAN.replace(" ", "\u00a0"),
    "narrow no-break space": CLEAN.replace(" ", "\u202f"),
    "ideographic space": CLEAN.replace(" ", "\u3000"),
    "em space and tab": CLEAN.replace(" ", "\u2003\t"),
    "line separator": CLEAN.replace(" ", "\u2028"),
    "form feed": CLEAN.replace(" ", "\f"),
    "mark of a space": CLEAN.replace(" ", "\u2581"),
    "byte order mark": f"\ufeff{CLEAN}",
    "zero-width space": CLEAN.replace("king", "ki\u200bng") + "\u200b",
    "zero-width space in a row": CLEAN.replace(" ", " \u200b "),
    "joiner at an end": f"\u200d{CLEAN}\u200c",
    "direction": f"\u202a{CLEAN}\u202c\u200e",
    "soft hyphen": CLEAN.replace("said", "sa\u00adid"),
    "controls": CLEAN.replace("said", "\x01sa\x7fid\x9f"),
}


def shipped(name: str, side: str) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(find_checkpoint(name) / f"{side}_tokenizer.json"))
    tokenizer.encode_special_tokens = True
    return tokenizer


def trained(kind: str) -> Tokenizer:
    texts = ["The king said, Go up.", "Go, he said to the king.", "Up he got: the king of kings."]
    vocabulary = Vocabulary(size=27, kind=kind)  # type: ignore[arg-type]
    return train_tokenizers(vocabulary, [Example(text, (text,)) for text in texts]).source


SUBWORDS: dict[str, Callable[[], Tokenizer]] = {
    "bible-en-es, source": lambda: shipped("bible-en-es", "source"),
    "bible-en-es, target": lambda: shipped("bible-en-es", "target"),
    "verses-en, source": lambda: shipped("verses-en", "source"),
    "trained byte pairs": lambda: trained("bpe"),
    "trained unigrams": lambda: trained("unigram"),
}


@pytest.mark.parametrize("name", SUBWORDS)
def test_unclean_texts_have_the_tokens_of_clean_ones(name: str) -> None:
    tokenizer = SUBWORDS[name]()
    expected = tokenizer.encode(CLEAN).ids
    assert len(expected) > 5
    found = {
        what: tokenizer.encode(text).ids
        for what, text in UNCLEAN.items()
        if what != "controls" or "verses" not in name  # whose bytes keep them
    }
    assert {what: ids for what, ids in found.items() if ids != expected} == {}


@pytest.mark.parametrize("name", SUBWORDS)
@pytest.mark.parametrize("text", ["", " ", "\t\n", "\u00a0", "\u200b", "\ufeff \u200d"])
def test_white_space_alone_is_an_empty_text(name: str, text: str) -> None:
    tokenizer = SUBWORDS[name]()
    assert tokenizer.encode(text).ids == tokenizer.encode("").ids


def test_ends_of_verses_keep_the_space_before_them() -> None:
    tokenizer = shipped("verses-en", "target")
    assert tokenizer.decode(tokenizer.encode("\u00a0 God  made\tit. \n").ids) == " God made it."
    assert tokenizer.encode("\t God").ids == tokenizer.encode(" God").ids
    assert tokenizer.encode(" God").ids != tokenizer.encode("God").ids


@pytest.mark.parametrize("name", ["bible-en-es", "verses-en", "g2p-en"])
@pytest.mark.parametrize("side", ["source", "target"])
def test_held_out_texts_have_the_tokens_that_the_model_was_trained_on(name: str, side: str) -> None:
    examples = read_examples(find_checkpoint(name) / "held_out.tsv")[
        :: 8 if name == "g2p-en" else 1
    ]
    texts = [
        *(example.source for example in examples if side == "source"),
        *(text for example in examples if side == "target" for text in example.references),
    ]
    tokenizer, bare = shipped(name, side), shipped(name, side)
    if name != "g2p-en":  # whose words were always normalized
        bare.normalizer = None
    for text, found, expected in zip(
        texts, tokenizer.encode_batch(texts), bare.encode_batch(texts), strict=True
    ):
        assert (found.ids, found.offsets) == (expected.ids, expected.offsets), text


def test_the_rules_are_those_of_sentencepiece_besides_zero_width() -> None:
    oracle = sentencepiece.SentencePieceNormalizer(
        rule_name="nmt_nfkc", add_dummy_prefix=False, escape_whitespaces=False
    )
    normalizer = SUBWORDS["bible-en-es, source"]().normalizer
    texts = [
        *(text for what, text in UNCLEAN.items() if "zero" not in what and "joiner" not in what),
        *("cafe\u0301 \ufb01n \uff21\uff42", "1\u00aa \u00bd \u2026"),
    ]
    beyond = ("direction", "soft hyphen", "controls")  # which it keeps, or replaces by spaces
    for text in texts:
        if text not in [UNCLEAN[what] for what in beyond]:
            assert normalizer.normalize_str(text) == oracle.normalize(text), repr(text)


@pytest.mark.parametrize("text", [*UNCLEAN.values(), "ﬁne  \u00bd\u00a0Cafe\u0301s"])
def test_tokens_belong_to_the_words_of_the_text_as_it_was_given(text: str) -> None:
    codec = LibraryCodec(find_checkpoint("bible-en-es") / "source_tokenizer.json")
    words = codec.words(text)
    given = [word for word in text.split() if word.strip("\u200b")]
    belonging = [words.words[n] for n in dict.fromkeys(words.of_token) if n is not None]
    assert belonging == given
    assert len(words.of_token) == len(codec.encode_source(text).tokens)
    parts = codec.words(text, each_token=True)
    assert len(parts.of_token) == len(words.of_token)
    assert all(part in text for part in parts.words)


@pytest.mark.parametrize("text", ["word\u200b", "\ufeffword", " wo\u00adrd\u00a0", "w\u2060ord\n"])
def test_letters_without_width_are_none_of_a_word_to_pronounce(text: str) -> None:
    tokenizer = g2p_en.make_source_tokenizer()
    assert tokenizer.encode(text).ids == tokenizer.encode("word").ids
    assert shipped("g2p-en", "source").encode(text).ids == tokenizer.encode("word").ids


def test_joiners_within_words_and_emoji_stay() -> None:
    normalizer = SUBWORDS["trained byte pairs"]().normalizer
    text = "\u0645\u06cc\u200c\u062e\u0648 👩\u200d👩\u200d👧"
    assert normalizer.normalize_str(f" {text}\u200d") == text
