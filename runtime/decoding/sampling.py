"""Sampling: each token drawn with its probability, after the distribution has been cut."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..backends.prediction import best_tokens
from .request import Request
from .search import NOTHING, Continuation, Draft, Need, Outlook, finish, first_draft

NUCLEUS = 256
"""Tokens that are sorted first to find the smallest set that holds `top_p`; it is rarely larger."""


@dataclass(frozen=True)
class Sample:
    """See `search.Strategy`.

    Attributes:
        seed: of the random numbers. The number for a token depends on it, on `index` and on the
            token's position alone: not on the batch, its order or the threads.
        index: which of several samples of one input this is
        temperature: logits are divided by it
        top_k: only the so many most probable tokens are drawn from; 0: all
        top_p: only the most probable ones that together have this probability (nucleus sampling,
            Holtzman et al. 2020)
        min_p: only those that have this share of the most probable one's probability
    """

    seed: int
    index: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def width(self) -> int:
        return 1

    def begin(self, request: Request) -> SampleSearch:
        return SampleSearch(self, request)

    def uniform(self, step: int) -> float:
        """The random number of a step, in [0, 1): Philox (Salmon et al. 2011), whose counter is the
        step."""
        bits = np.random.Philox(key=np.array([self.seed, self.index], np.uint64), counter=step)
        return float(np.random.Generator(bits).random())

    def probabilities(self, scores: NDArray[np.float32]) -> NDArray[np.float64]:
        """The probabilities that tokens are drawn with, from scores [V]; in the order of Hugging
        Face: temperature, top_k, top_p, min_p."""
        logits = scores.astype(np.float64) / self.temperature
        if 0 < self.top_k < len(logits):
            least = scores[best_tokens(scores[None], self.top_k)[0, -1]]
            logits[scores < least] = -np.inf  # what equals the last of them stays
        probabilities = _softmax(logits)
        if self.top_p < 1:
            probabilities[~_nucleus(probabilities, self.top_p)] = 0
            probabilities /= probabilities.sum()
        if self.min_p > 0:
            probabilities[probabilities < self.min_p * probabilities.max()] = 0
            probabilities /= probabilities.sum()
        return probabilities


class SampleSearch:
    """One hypothesis."""

    def __init__(self, strategy: Sample, request: Request) -> None:
        self._strategy, self._rules = strategy, request.rules
        self.draft = first_draft(request)
        self.finished = self.draft.count > 0 and finish(self.draft, self._rules)

    def need(self) -> Need:
        if self._is_forced():
            return NOTHING
        return Need(self._rules.alternatives, logits=True)

    def advance(self, outlook: Outlook, row: int) -> Continuation:
        rules, draft = self._rules, self.draft
        if self._is_forced() and rules.forced_last is not None:
            draft.append(rules.forced_last, 0.0)
        else:
            token, log_probability = self._draw(outlook, row)
            draft.append(token, log_probability, outlook.alternatives(row, rules.alternatives))
        draft.score += draft.log_probabilities[-1]
        self.finished = finish(draft, rules)
        return Continuation([draft.row.tokens[-1]])

    def outputs(self) -> list[Draft]:
        return [self.draft]

    def _is_forced(self) -> bool:
        last = self.draft.count + 1 == self._rules.limit
        return last and self._rules.forced_last is not None

    def _draw(self, outlook: Outlook, row: int) -> tuple[int, float]:
        """A token, with the model's own log-probability; token 0, as in greedy search, where no
        token is left."""
        scores = outlook.logits(row, 1)[0]
        count = self.draft.count + 1
        self._rules.apply(scores, self.draft.row, count)
        if scores.max() == -np.inf:
            return 0, 0.0
        cumulative = np.cumsum(self._strategy.probabilities(scores))
        drawn = self._strategy.uniform(count) * cumulative[-1]
        token = int(np.searchsorted(cumulative, drawn, side="right"))
        return token, outlook.logit(row, token) - outlook.allowed_normalizer(row)


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(logits - logits.max())
    result: NDArray[np.float64] = powers / powers.sum()
    return result


def _nucleus(probabilities: NDArray[np.float64], share: float) -> NDArray[np.bool_]:
    """The most probable tokens of which those before have less than `share` together."""
    size = min(NUCLEUS, len(probabilities))
    while True:
        best = np.argpartition(-probabilities, size - 1)[:size]
        best = best[np.argsort(-probabilities[best], kind="stable")]
        before = np.cumsum(probabilities[best]) - probabilities[best]
        if before[-1] >= share or size == len(probabilities):
            kept = np.zeros(len(probabilities), np.bool_)
            kept[best[before < share]] = True
            return kept
        size = min(8 * size, len(probabilities))
