"""What a sample says of the whole, against sums of exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from dragoman.verification.checks.tokens import most_events, upper_share


def at_most(count: int, total: int, share: Fraction) -> Fraction:
    """The probability of so few events."""
    terms = (math.comb(total, n) * share**n * (1 - share) ** (total - n) for n in range(count + 1))
    return sum(terms, Fraction(0))


@pytest.mark.parametrize(
    ("count", "total", "expected"),
    # The limits of Clopper and Pearson at 95 %, as tables of them have them.
    [(0, 10, 0.3085), (1, 10, 0.4450), (5, 20, 0.4910), (50, 100, 0.6017), (10, 10, 1.0)],
)
def test_upper_limits_of_shares(count: int, total: int, expected: float) -> None:
    assert upper_share(count, total, 0.025) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize(("count", "total"), [(0, 1), (0, 64), (3, 64), (60, 64), (700, 1400)])
def test_at_the_limit_so_few_are_as_improbable_as_requested(count: int, total: int) -> None:
    share = Fraction(upper_share(count, total, 1e-3)).limit_denominator(10**9)
    assert float(at_most(count, total, share)) == pytest.approx(1e-3, rel=1e-4)


@pytest.mark.parametrize("total", [1, 2, 7, 64, 200])
@pytest.mark.parametrize("share", [Fraction(1, 800), Fraction(1, 10), Fraction(1, 2)])
@pytest.mark.parametrize("chance", [0.2, 1e-3, 1e-9])
def test_the_most_events_are_the_fewest_that_are_rarely_exceeded(
    total: int, share: Fraction, chance: float
) -> None:
    most = most_events(total, float(share), chance)
    assert 1 - at_most(most, total, share) <= Fraction(chance)
    assert most == 0 or 1 - at_most(most - 1, total, share) > Fraction(chance)


def test_what_is_certain() -> None:
    assert most_events(9, 0.0, 1e-3) == 0
    assert most_events(9, 1.0, 1e-3) == 9


def test_many_trials_lose_no_digits() -> None:
    """A million trials give about as many as a normal distribution: 3.09 standard errors."""
    most = most_events(10**6, 0.1, 1e-3)
    assert most == pytest.approx(100_000 + 3.0902 * 300, abs=3)
