"""Choosing tokens from logits on the host, where the graph's own choice is not what is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .backends import Step
from .rules import Rules


class Rule(Protocol):
    """One rule's effect on the logits of a step."""

    def active(self, count: int) -> bool:
        """Whether it can change the choice of the count-th new token (the first is 1)."""

    def apply(self, logits: NDArray[np.float32], tokens: Sequence[Sequence[int]]) -> None:
        """Change logits [B, V] in place.

        Args:
            tokens: what the decoder of each row has been given so far, the start token first
        """


class EndNotBefore:
    """The end token is not among the first `count` new tokens."""

    def __init__(self, count: int, end_token_id: int) -> None:
        self._count, self._end = count, end_token_id

    def active(self, count: int) -> bool:
        return count <= self._count

    def apply(self, logits: NDArray[np.float32], tokens: Sequence[Sequence[int]]) -> None:
        logits[:, self._end] = -np.inf


class NotAt:
    """Some tokens are not chosen as the count-th new token."""

    def __init__(self, count: int, token_ids: Sequence[int]) -> None:
        self._count, self._ids = count, list(token_ids)

    def active(self, count: int) -> bool:
        return count == self._count and bool(self._ids)

    def apply(self, logits: NDArray[np.float32], tokens: Sequence[Sequence[int]]) -> None:
        logits[:, self._ids] = -np.inf


class RepetitionPenalty:
    def __init__(self, penalty: float) -> None:
        self._penalty = np.float32(penalty)

    def active(self, count: int) -> bool:
        return bool(self._penalty != 1)

    def apply(self, logits: NDArray[np.float32], tokens: Sequence[Sequence[int]]) -> None:
        for row, given in zip(logits, tokens, strict=True):
            seen = list(set(given))
            scores = row[seen]
            row[seen] = np.where(scores < 0, scores * self._penalty, scores / self._penalty)


class NoRepeatedNgram:
    """No n tokens in a row occur twice, the start token and the prompt included."""

    def __init__(self, size: int) -> None:
        self._size = size

    def active(self, count: int) -> bool:
        return self._size > 0

    def apply(self, logits: NDArray[np.float32], tokens: Sequence[Sequence[int]]) -> None:
        before = self._size - 1
        for row, given in zip(logits, tokens, strict=True):
            ending = given[len(given) - before :]
            starts = range(len(given) - before)
            repeated = [given[i + before] for i in starts if given[i : i + before] == ending]
            row[repeated] = -np.inf


def logits_rules(rules: Rules, end_token_id: int) -> list[Rule]:
    """The effects of a model's rules on logits, in the order in which Hugging Face applies them."""
    first = 1 if rules.forced_first_token_id is None else 2
    return [
        RepetitionPenalty(rules.repetition_penalty),
        NoRepeatedNgram(rules.no_repeat_ngram_size),
        EndNotBefore(rules.min_new_tokens, end_token_id),
        NotAt(first, rules.first_suppressed_token_ids),
    ]


def choose(
    logits: NDArray[np.float32],
    rules: Sequence[Rule],
    tokens: Sequence[Sequence[int]],
    suppressed: Sequence[int] = (),
) -> Step:
    """The greedy choice of a step under rules.

    Args:
        logits: [B, V], left as they are
        rules: those that have a say in this step
        tokens: as in `Rule.apply`
        suppressed: never chosen

    Returns:
        the choice; its log-probability is the model's own, among all tokens but the suppressed
    """
    allowed = logits.copy()
    allowed[:, list(suppressed)] = -np.inf
    highest = allowed.max(1, keepdims=True)
    normalizer = np.log(np.exp(allowed - highest).sum(1)) + highest[:, 0]
    own = allowed.copy()
    for rule in rules:
        rule.apply(allowed, tokens)
    chosen = allowed.argmax(1)
    return Step(chosen, np.take_along_axis(own, chosen[:, None], 1)[:, 0] - normalizer)
