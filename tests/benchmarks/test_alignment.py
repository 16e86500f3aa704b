"""Letters and phonemes aligned without attention: hand-worked cases."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from docs.tools.alignment import Aligner

PAIRS = [
    (list(word), sounds.split())
    for word, sounds in (
        ("ba", "B AA"),
        ("ab", "AA B"),
        ("shb", "SH B"),
        ("ash", "AA SH"),
        ("sha", "SH AA"),
        ("x", "K S"),
        ("xa", "K S AA"),
    )
]


def test_each_phoneme_is_of_the_letter_that_makes_it() -> None:
    aligner = Aligner(PAIRS)
    for word, sounds, letters in (
        ("bab", "B AA B", (0, 1, 2)),
        ("axb", "AA K S B", (0, 1, 1, 2)),
        ("x", "K S", (0, 0)),
    ):
        found = aligner.posterior((list(word), sounds.split()))
        assert found.argmax(1).tolist() == list(letters)
        np.testing.assert_allclose(found.sum(1), 1)


@pytest.mark.parametrize("pair", [("abx", "AA B K S"), ("sh", "SH"), ("bb", "B B B")])
def test_posteriors_are_those_of_all_alignments(pair: tuple[str, str]) -> None:
    """The oracle counts them one by one."""
    letters, phonemes = list(pair[0]), pair[1].split()
    aligner = Aligner(PAIRS, iterations=2)
    alone = {
        (p, n): aligner._makes[aligner._row[p], aligner._column[n]]
        for p in phonemes
        for n in letters
    }
    expected = np.zeros((len(phonemes), len(letters)))
    for path in itertools.combinations_with_replacement(range(len(letters)), len(phonemes)):
        probability = np.prod([alone[p, letters[n]] for p, n in zip(phonemes, path, strict=True)])
        expected[range(len(phonemes)), path] += probability
    expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose(aligner.posterior((letters, phonemes)), expected, rtol=1e-9)
