"""Which words are aligned, worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from dragoman.runtime.attention.alignment import (
    Alignment,
    WordStream,
    align,
    attended_word,
    word_token,
    words_of,
)
from dragoman.runtime.attention.reader import Attention


class Pieces:
    """A stream that knows what each token adds."""

    def __init__(self, pieces: dict[int, str]) -> None:
        self.pieces = pieces

    def step(self, token: int) -> str:
        return self.pieces[token]

    def rest(self) -> str:
        return ""


@pytest.mark.parametrize(
    ("pieces", "words", "numbers"),
    [
        ((), [], []),
        (("ab", "c", " d", "e f"), ["abc", "de", "f"], [0, 0, 1, 2]),
        (("", "a", " b", ""), ["a", "b"], [None, 0, 1, None]),
        # The first bytes of a character belong to the word that it is in.
        (
            ("a", "", "", "\N{SNOWMAN}", " b"),
            ["a\N{SNOWMAN}", "b"],
            [0, 0, 0, 0, 1],
        ),
        (("a", " ", "b"), ["a", "b"], [0, None, 1]),
        (("", ""), [], [None, None]),
    ],
)
def test_words_of_tokens(
    pieces: Sequence[str], words: list[str], numbers: list[int | None]
) -> None:
    tokens = list(range(len(pieces)))
    assert words_of(tokens, Pieces(dict(enumerate(pieces)))) == (words, numbers)


def test_each_target_word_goes_to_the_source_word_that_it_attends_to_most() -> None:
    weights = np.array(
        [
            [0.4, 0.3, 0.3, 0.0],  # the second and third token are one word, 0.6 together
            [0.6, 0.1, 0.1, 0.2],
            [0.3, 0.2, 0.1, 0.4],  # with the row above, one word: 0.9, 0.5
            [0.0, 0.1, 0.0, 0.9],  # no word: the end token
        ],
        np.float32,
    )
    assert align(weights, [0, 1, 1, None], [0, 1, 1, None]) == ((1, 0), (0, 1))
    assert align(weights, [None] * 4, [0, 1, 1, None]) == ()
    assert align(weights, [0, 1, 1, None], [None] * 4) == ()
    assert attended_word(weights[0], [0, 1, 1, None]) == 1
    assert attended_word(weights[0], [None] * 4) is None


def test_pharaohs_format() -> None:
    assert str(Alignment(("a", "b"), ("c",), ((1, 0), (0, 2)))) == "1-0 0-2"
    assert str(Alignment(error="no")) == ""


def test_the_heads_that_align() -> None:
    cross = np.random.default_rng(0).random((3, 2, 4, 5), np.float32)
    plain = Attention((), (), (), None, None, cross)
    np.testing.assert_allclose(plain.aligning, cross[1].mean(0))
    named = Attention((), (), (), None, None, cross, ((2, 0), (0, 1)))
    np.testing.assert_allclose(named.aligning, (cross[2, 0] + cross[0, 1]) / 2)
    one = Attention((), (), (), None, None, cross[:1])
    np.testing.assert_allclose(one.aligning, cross[0].mean(0))
    with pytest.raises(ValueError, match="expected cross-attention"):
        _ = Attention((), (), (), None, cross, None).aligning


class Words:
    """A stream that leaves unknown tokens out, and with the first token its space."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces, self.begun = pieces, False

    def step(self, token: int) -> str:
        piece = self.pieces[token]
        made = piece if self.begun else piece.lstrip()
        self.begun = self.begun or bool(piece)
        return made

    def rest(self) -> str:
        return ""


VOCABULARY = ("", "##", ".", " the", " world", "s")


def test_the_token_of_a_word_is_found() -> None:
    assert word_token(lambda: Words(VOCABULARY), len(VOCABULARY), 0) == 3
    assert word_token(lambda: Words(("", "a", "b")), 3, 0) == 1  # characters alone
    assert word_token(lambda: Words(("", "")), 2, 0) == 0


@pytest.mark.parametrize(
    ("tokens", "words", "numbers"),
    [
        ((0, 4), ["the", "world"], [0, 1]),
        ((4, 0, 4), ["world", "the", "world"], [0, 1, 2]),
        ((4, 0), ["world", "the"], [0, 1]),
        ((0, 5, 4), ["thes", "world"], [0, 0, 1]),  # what follows without a space is of the word
        ((0, 0), ["the", "the"], [0, 1]),
    ],
)
def test_unknown_tokens_are_words(
    tokens: Sequence[int], words: list[str], numbers: list[int]
) -> None:
    assert words_of(tokens, WordStream(Words(VOCABULARY), 0, 3)) == (words, numbers)
