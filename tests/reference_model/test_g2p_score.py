"""g2p-en: word error and phone error against hand-computed values."""

from __future__ import annotations

import pytest

from dragoman.reference_model.recipes import Example
from dragoman.reference_model.recipes.g2p_en import score

TOMATO = Example("tomato", ("T AH M EY T OW", "T AH M AA T OW"))
CAT = Example("cat", ("K AE T",))


@pytest.mark.parametrize(
    ("hypothesis", "errors"),
    [
        ("K AE T", 0),
        ("K AE", 1),  # left out
        ("K AE T S", 1),  # put in
        ("K AA T", 1),  # exchanged
        ("AE K T", 2),  # two in the wrong order
        ("", 3),
        ("B IY Z IY", 4),
    ],
)
def test_phone_error_is_the_edit_distance(hypothesis: str, errors: int) -> None:
    assert score([hypothesis], [CAT]) == {
        "word error": float(errors > 0),
        "phone error": errors / 3,
    }


@pytest.mark.parametrize("hypothesis", TOMATO.references)
def test_any_reference_counts_as_correct(hypothesis: str) -> None:
    assert score([hypothesis], [TOMATO]) == {"word error": 0.0, "phone error": 0.0}


def test_errors_are_counted_from_the_nearest_reference() -> None:
    # One substitution from the second, two from the first.
    assert score(["T AH M AA D OW"], [TOMATO]) == {"word error": 1.0, "phone error": 1 / 6}


def test_the_length_is_that_of_the_nearest_reference() -> None:
    either = Example("either", ("AA B", "IY Z ER D AH"))
    assert score(["IY Z ER D"], [either]) == {"word error": 1.0, "phone error": 1 / 5}


def test_phones_are_summed_over_words() -> None:
    result = score(["T AH M EY T OW", "K AE", "K AE T"], [TOMATO, CAT, CAT])
    assert result == {"word error": 1 / 3, "phone error": 1 / 12}


def test_phonemes_are_compared_not_letters() -> None:
    # AE and AH share a letter, but count as different as any other two.
    assert score(["K AH T"], [CAT])["phone error"] == pytest.approx(1 / 3)


def test_each_hypothesis_needs_an_example() -> None:
    with pytest.raises(ValueError, match="zip"):
        score(["K AE T", "K AE T"], [CAT])
