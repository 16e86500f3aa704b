"""Texts that are far too long are refused from their beginnings; texts that fit never are."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from dragoman.runtime import Model
from dragoman.runtime.texts.codecs import Codec, LibraryCodec, PieceCodec, UnknownSymbolsError
from dragoman.runtime.texts.tokenizer import TooLongError, check_length

from ..conftest import letter_tokenizer

MOST = 40
UNKNOWN = "<unk>"
CORPUS = ["the cat sat on the mat", "a cat, a dog and the bird", "naïve café: où ?", "x y z"] * 20
MILLION = 1_000_000


def library(tokenizer: Tokenizer, directory: Path) -> Codec:
    tokenizer.save(str(directory / "tokenizer.json"))
    return LibraryCodec(directory / "tokenizer.json")


def letters(directory: Path) -> Codec:
    """Each letter is a token; there is none for other symbols."""
    return library(letter_tokenizer(), directory)


def bytes_bpe(directory: Path) -> Codec:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator(CORPUS, trainer)
    return library(bpe, directory)


def unigram(directory: Path) -> Codec:
    """Deletes accents and repeated spaces; unknown symbols in a row are one token."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Strip()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    trainer = trainers.UnigramTrainer(
        vocab_size=40, special_tokens=[UNKNOWN], unk_token=UNKNOWN, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return library(tokenizer, directory)


def word_pieces(directory: Path) -> Codec:
    """A word of more than 1,000 letters is one unknown token."""
    pieces = ["<unk>", *"abcxyz", *(f"##{letter}" for letter in "abcxyz")]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    model = models.WordPiece(vocabulary, unk_token=UNKNOWN, max_input_chars_per_word=1000)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return library(tokenizer, directory)


def words(directory: Path) -> Codec:
    """Any text that is not in the vocabulary is one token."""
    return library(Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, "<unk>")), directory)


def sentence_pieces(directory: Path, *, unknown: int | None = 0, **options: Any) -> Codec:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_prefix=str(directory / "spm"),
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(directory / "spm.model"))
    pieces = {processor.id_to_piece(i): i for i in range(3, processor.get_piece_size())}
    vocabulary = {"unknown": unknown, "pieces": pieces, "leading_code": True}
    (directory / "vocabulary.json").write_text(json.dumps(vocabulary))
    return PieceCodec(directory / "spm.model", directory / "vocabulary.json")


CODECS: dict[str, Callable[[Path], Codec]] = {
    "letters": letters,
    "byte-level BPE": bytes_bpe,
    "unigram": unigram,
    "WordPiece": word_pieces,
    "words": words,
    "SentencePiece": lambda d: sentence_pieces(d, vocab_size=45),
    "SentencePiece, unknown refused": lambda d: sentence_pieces(d, vocab_size=45, unknown=None),
    "SentencePiece BPE of bytes": lambda d: sentence_pieces(
        d, vocab_size=330, model_type="bpe", byte_fallback=True
    ),
}


@pytest.fixture(scope="module", params=CODECS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def codec(name: str, tmp_path_factory: pytest.TempPathFactory) -> Codec:
    return CODECS[name](tmp_path_factory.mktemp("codec"))


class Spy:
    """A codec that remembers how many characters it had to look at."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self.seen: list[int] = []

    special_tokens: Any = None

    def count(self, text: str, end: int, *, split_special_tokens: bool = False) -> int:
        self.seen.append(len(text))
        return self._codec.count(text, end)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name}: only a beginning is counted")


def seen(codec: Codec, text: str) -> list[int]:
    """How many characters are looked at to refuse a text."""
    spy = Spy(codec)
    with pytest.raises((TooLongError, UnknownSymbolsError)):
        check_length(spy, text, MOST)
    return spy.seen


@pytest.mark.parametrize("unit", ["a", "abc ", "cat\n", "xyz " * 400 + "\t"])
def test_a_million_characters_are_refused_from_the_first_thousands(
    codec: Codec, name: str, unit: str
) -> None:
    text = unit * (MILLION // len(unit))
    if name == "words" or (name, unit) == ("WordPiece", "a"):  # one token
        check_length(codec, text, MOST)
    else:
        [characters] = seen(codec, text)
        assert characters <= 2 * (8 * MOST + 2048)


def assert_not_refused_wrongly(codec: Codec, text: str, limits: set[int]) -> int:
    """The oracle encodes the text whole. Returns how often it was refused."""
    refused = 0
    try:
        tokens = len(codec.encode_source(text).tokens)
    except UnknownSymbolsError:
        return 0
    for most in limits | {tokens, tokens + 1}:
        try:
            check_length(codec, text, most)
        except TooLongError as error:
            assert most < error.tokens <= tokens, (text[:20], most)
            refused += 1
    return refused


@pytest.mark.parametrize("many", [" ", "\n\t ", "\u0301", "Ω", "a", "é", "1 "], ids=repr)
def test_no_text_that_fits_is_refused(codec: Codec, many: str) -> None:
    """Many characters may be few tokens: spaces, accents, unknown symbols."""
    for short in ["a", "  cat a ", "日本", "a1"]:
        for text in (short + many * 9000, many * 9000 + short):
            assert_not_refused_wrongly(codec, text, {1, MOST})


def test_no_random_text_that_fits_is_refused(codec: Codec, name: str) -> None:
    generator = random.Random(0)
    units = [
        "a",
        "cat ",
        "the mat",
        " ",
        "\n",
        "\u0301",
        "é",
        "Ω",
        "日",
        "xyz",
        "\ufdfa",
        "ab" * 600,
    ]
    units = ["a", "cat", "é", "\u0301", "themat"] if name == "letters" else units
    refused = 0
    for _ in range(30):
        chosen = generator.sample(units, generator.randint(1, 4))
        text = "".join(u * generator.randint(1, 1500) for u in generator.choices(chosen, k=6))
        refused += assert_not_refused_wrongly(codec, text[:12_000], {1, 7, MOST, 300})
    assert refused or name == "words"


def test_a_text_that_just_fits_passes_and_is_encoded_as_ever(codec: Codec, name: str) -> None:
    text = "a" * MOST if name == "letters" else "a b " * MOST
    most = len(codec.encode_source(text).tokens)
    for padded in (text, text + " " * 20_000, " " * 20_000 + text):
        expected = codec.encode_source(padded).tokens
        check_length(codec, padded, len(expected))
    assert most == 1 or seen(codec, text * 900)


def test_unknown_symbols_are_found_in_the_beginning(tmp_path: Path) -> None:
    assert len(seen(letters(tmp_path), "1" * MILLION)) == 1
    pieces = sentence_pieces(tmp_path, vocab_size=45, unknown=None)
    assert len(seen(pieces, "Ω a" * MILLION)) == 1


def test_a_word_that_goes_on_is_not_taken_for_its_parts(tmp_path: Path) -> None:
    """Half of a word of 1,500 letters would be 750 tokens, and the whole word is one."""
    codec = word_pieces(tmp_path)
    for spaces in range(0, 6000, 241):
        check_length(codec, " " * spaces + "a" * 1500 + " b" + " " * 9000, MOST)


def test_the_model_refuses_what_it_never_encoded_whole(
    text_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    encode = LibraryCodec._encode

    def spy(self: LibraryCodec, text: str, special_tokens: bool, splits: bool) -> Any:
        lengths.append(len(text))
        return encode(self, text, special_tokens, splits)

    monkeypatch.setattr(LibraryCodec, "_encode", spy)
    expected = text_model.generate(["abc"])[0]
    first, spaces, second, last = text_model.generate(
        ["a" * MILLION, " " * MILLION + "abc", "1" * MILLION, "abc"]
    )
    assert first.error == (
        "source has at least 2368 tokens, expected at most 40, the positions of this model; "
        "truncate=True (--truncate) cuts it"
    )
    assert second.error == "unknown to this model: '1'"
    assert (spaces, last) == (expected, expected)
    assert sum(length > 5000 for length in lengths) < 12  # those of the spaces, doubled
    assert text_model.tokenize("a" * 39 + " " * MILLION) == [3] * 39 + [2]
