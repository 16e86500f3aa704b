"""Phrases are followed token by token as a search through the whole sequence finds them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from dragoman.runtime.decoding.constrained_beam_search import (
    RequiredPhrases,
    Tokenizations,
    contains,
)


def occurs(tokens: Sequence[int], way: Sequence[int]) -> bool:
    """Written as texts: one letter for each token."""
    text, part = ("".join(map(chr, ids)) for ids in (tokens, way))
    return part in text


def satisfied(tokens: Sequence[int], phrases: Sequence[Tokenizations]) -> bool:
    return all(any(occurs(tokens, way) for way in ways) for ways in phrases)


def random_phrases(generator: random.Random, tokens: Sequence[int]) -> list[list[list[int]]]:
    """One to three phrases of one or two ways, often with parts in common."""
    return [
        [
            [generator.choice(tokens) for _ in range(generator.randint(1, 4))]
            for _ in range(generator.randint(1, 2))
        ]
        for _ in range(generator.randint(1, 3))
    ]


def test_everything_is_met_exactly_when_every_phrase_occurs() -> None:
    generator = random.Random(0)
    met = 0
    for _ in range(400):
        phrases = random_phrases(generator, (3, 4, 5))
        required = RequiredPhrases(phrases)
        progress, tokens = required.start, list[int]()
        for _ in range(12):
            tokens.append(generator.choice((3, 4, 5, 6)))
            progress = required.after(progress, tokens[-1])
            assert (not progress.unmet) == satisfied(tokens, phrases)
            assert (required.to_come(progress) == 0) == (not progress.unmet)
        met += not progress.unmet
    assert 100 < met < 300


def test_one_more_token_always_makes_less_to_come() -> None:
    """So that as many tokens as `to_come` says do suffice; never more than all phrases have."""
    generator = random.Random(1)
    for _ in range(400):
        phrases = random_phrases(generator, (3, 4))
        required = RequiredPhrases(phrases)
        tokens = [generator.choice((3, 4, 5)) for _ in range(generator.randint(0, 5))]
        progress = required.after(required.start, *tokens)
        assert required.to_come(progress) <= required.tokens
        while progress.unmet:
            before = required.to_come(progress)
            following = required.towards(progress)
            assert following
            for token in (3, 4, 5, 6):
                less = required.to_come(required.after(progress, token)) < before
                assert less == (token in following)
            tokens.append(generator.choice(following))
            progress = required.after(progress, tokens[-1])
        assert required.towards(progress) == []
        assert satisfied(tokens, phrases)


@pytest.mark.parametrize(
    ("tokens", "to_come", "towards"),
    [
        ((), 5, {3, 7}),
        ((3,), 4, {4}),
        ((3, 4), 3, {5}),
        ((3, 4, 4), 5, {3, 7}),
        ((3, 3), 4, {4}),
        ((7,), 4, {8}),
        ((7, 3), 4, {4}),
        ((7, 8), 3, {3}),
        ((3, 4, 5), 2, {7}),
        ((3, 4, 7, 8, 3), 2, {4}),
        ((3, 4, 5, 9, 7, 8), 0, set()),
    ],
)
def test_a_phrase_that_has_begun_is_completed_first(
    tokens: Sequence[int], to_come: int, towards: set[int]
) -> None:
    """Phrases 3 4 5 and 7 8."""
    required = RequiredPhrases([[(3, 4, 5)], [(7, 8)]])
    progress = required.after(required.start, *tokens)
    assert required.to_come(progress) == to_come
    assert set(required.towards(progress)) == towards


def test_what_begins_anew_within_an_occurrence_is_not_lost() -> None:
    """In 3 3 3 4, the phrase 3 3 4 begins with the second token."""
    required = RequiredPhrases([[(3, 3, 4)]])
    progress = required.after(required.start, 3, 3, 3)
    assert required.to_come(progress) == 1
    assert not required.after(progress, 4).unmet


def test_any_way_of_a_phrase_will_do() -> None:
    required = RequiredPhrases([[(3, 4, 5, 6), (7, 8)]])
    assert required.tokens == 2
    assert not required.after(required.start, 3, 4, 5, 6).unmet
    assert not required.after(required.start, 9, 7, 8).unmet
    # The shorter way is not farther than the rest of the longer one.
    assert required.to_come(required.after(required.start, 3)) == 2
    assert set(required.towards(required.after(required.start, 3, 4, 5))) == {6}


@pytest.mark.parametrize(
    ("phrases", "tokens"),
    [
        ([[(3, 4)], [(3, 4)]], 2),
        ([[(4,)], [(3, 4)], [(3,)]], 2),
        ([[(3, 4), (5,)], [(5,), (3, 4)]], 1),
        ([[(3, 4)], [(3,), (9, 9)]], 2),
        ([[(3, 4), (5,)], [(4,)]], 2),
        ([[(3,), (4,)], [(3, 5)]], 2),
        ([[(3, 4)], [(4, 5)]], 4),
    ],
)
def test_a_phrase_within_another_is_not_placed_apart(
    phrases: list[Tokenizations], tokens: int
) -> None:
    required = RequiredPhrases(phrases)
    assert required.tokens == tokens
    for sequence in itertools.product((3, 4, 5, 9), repeat=4):
        met = not required.after(required.start, *sequence).unmet
        assert met == satisfied(sequence, phrases)


def test_nothing_is_required_of_any_sequence() -> None:
    required = RequiredPhrases([])
    assert not required.start.unmet
    assert required.towards(required.after(required.start, 3)) == []
    assert required.tokens == 0


def test_contains() -> None:
    assert contains([1, 2, 3], (2, 3))
    assert contains([1, 2, 3], [1, 2, 3])
    assert not contains([1, 2, 3], (1, 3))
    assert not contains([1], (1, 1))
