"""Which word of a source each of its tokens belongs to."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import sentencepiece
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

from dragoman.runtime.texts.codecs.interface import words_at
from dragoman.runtime.texts.tokenizer import TextCodec

TEXTS = [
    "the cat sat on the mat",
    "a",
    "a Zoltan dog",
    "naïve  café:\t où ?",
    "  the Quynh cat ",
    "😎 cat 国",
    "\N{NO-BREAK SPACE}the cat",
    "ﬁne cat",
]


@pytest.mark.parametrize("text", TEXTS)
def test_each_token_belongs_to_the_word_that_it_is_in(source: TextCodec, text: str) -> None:
    """The oracle: a token is of the first word with which a text has more tokens. Words that the
    vocabulary lacks count."""
    ends = [found.end() for found in re.finditer(r"\S+", text)]
    counts = [len(source.encode(text[:end])) - 3 for end in ends]
    expected = [next(w for w, count in enumerate(counts) if count > n) for n in range(counts[-1])]
    words, found = source.source_words(text)
    assert words == text.split()
    assert len(found) == len(source.encode(text))
    assert (found[:2], found[-1]) == ([None, None], None)
    own = found[2:-1][: counts[-1]]
    assert [w for w in own if w is not None] == [
        w for w, n in zip(expected, own, strict=True) if n is not None
    ]
    assert {word for word in own if word is not None} == set(range(len(text.split())))


def test_a_language_code_is_a_word_or_part_of_one(tmp_path: Path) -> None:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the cat sat on the mat"] * 9),
        model_prefix=str(tmp_path / "m"),
        vocab_size=20,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    model, vocabulary = tmp_path / "m.model", tmp_path / "vocabulary.json"
    pieces = {"▁the": 4, ">>fra<<": 5, "▁": 6, "c": 7, "a": 8, "t": 9, "▁cat": 10}
    vocabulary.write_text(json.dumps({"unknown": 3, "leading_code": True, "pieces": pieces}))
    codec = TextCodec(model, model, source_vocabulary=vocabulary, target_vocabulary=vocabulary)
    apart, joined = (codec.source_words(text)[1] for text in (">>fra<< the", ">>fra<<the cat"))
    assert apart[0] == 0 and set(apart[1:]) == {1}
    assert joined[0] == 0 and {word for word in joined[1:] if word is not None} == {0, 1}
    assert len(joined) == len(codec.encode(">>fra<<the cat"))
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    parts = [">>fra<<", *processor.encode("the zcat dog", out_type=str)]
    for most in range(len(parts) + 1):
        lacked = "".join(part for part in parts[:most] if part not in pieces)
        found = codec.encode_beginning(">>fra<<the zcat dog", None, most)
        assert found.unknown == lacked.replace("▁", "")
    assert "z" in codec.encode_source(">>fra<<the zcat dog").unknown


def test_words_are_those_that_split_finds() -> None:
    text = "ab  c\x1fd\N{IDEOGRAPHIC SPACE}e"
    spans = [(0, 1), (1, 3), (2, 4), (2, 5), None, (5, 5), (6, 7), (7, 9)]
    assert words_at(text, spans) == [0, 0, None, 1, None, None, 2, 3]
    assert text.split() == ["ab", "c", "d", "e"]


def test_letters_are_the_words_of_a_tokenizer_without_a_decoder(tmp_path: Path) -> None:
    unknown = "?"
    vocabulary = {"</s>": 0, unknown: 1, "a": 2, "b": 3}
    letters = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    letters.add_special_tokens(["</s>"])
    letters.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    letters.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 0)]
    )
    letters.save(str(tmp_path / "letters.json"))
    codec = TextCodec(tmp_path / "letters.json", tmp_path / "letters.json")
    assert codec.source_words("ab xa") == (["a", "b", "x", "a"], [0, 1, None, 2, 3, None])
