"""What a sample says of the whole: how large a share may be, and how often an event may occur.

The binomial distribution, by its logarithms, so that neither many trials nor rare events are lost.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

HALVINGS = 50


def upper_share(count: int, total: int, chance: float) -> float:
    """The upper confidence limit of a share (Clopper and Pearson 1934).

    Args:
        count: events that occurred
        total: trials, at least one
        chance: the probability that so few or fewer events occur if the share is the limit

    Returns:
        1 if every trial was an event
    """
    if count >= total:
        return 1.0
    lower, upper = count / total, 1.0
    for _ in range(HALVINGS):
        middle = (lower + upper) / 2
        if float(_probabilities(total, middle)[: count + 1].sum()) > chance:
            lower = middle
        else:
            upper = middle
    return upper


def most_events(total: int, share: float, chance: float) -> int:
    """The largest number of events that is no surprise: more occur with at most this chance.

    Args:
        share: the probability of each event
    """
    if share >= 1:
        return total
    if share <= 0:
        return 0
    # Summed from the rare end, where a sum from the other one would have lost its digits.
    more = np.cumsum(_probabilities(total, share)[::-1])[::-1]
    return int(np.count_nonzero(more > chance)) - 1


def _probabilities(total: int, share: float) -> NDArray[np.float64]:
    """Of each number of events from 0 to all, for a share between 0 and 1."""
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, total + 1)))])
    events = np.arange(total + 1)
    ways = factorials[-1] - factorials - factorials[::-1]
    logarithms = ways + events * np.log(share) + (total - events) * np.log1p(-share)
    return np.asarray(np.exp(logarithms), np.float64)
