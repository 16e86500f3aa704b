"""Sampling: each token drawn with its probability, after the distribution has been cut."""

from __future__ import annotations

import dataclasses
import secrets
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..backends.prediction import best_tokens
from .request import Request
from .single import SingleSearch

NUCLEUS = 256
"""Tokens that are sorted first to find the smallest set that holds `top_p`; it is rarely larger."""


@dataclass(frozen=True)
class Sample:
    """See `search.Strategy`.

    Attributes:
        seed: of the random numbers. The number for a token depends on it, on `index` and on the
            token's position alone: not on the batch, its order or the threads. None: every request
            has one of its own.
        index: which of several samples of one input this is
        temperature: logits are divided by it
        top_k: only the so many most probable tokens are drawn from; 0: all
        top_p: only the most probable ones that together have this probability (nucleus sampling,
            Holtzman et al. 2020)
        min_p: only those that have this share of the most probable one's probability
    """

    seed: int | None
    index: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def width(self) -> int:
        return 1

    def begin(self, request: Request) -> SampleSearch:
        if self.seed is None:
            return SampleSearch(dataclasses.replace(self, seed=secrets.randbits(64)), request)
        return SampleSearch(self, request)

    def uniform(self, step: int) -> float:
        """The random number of a step, in [0, 1): Philox (Salmon et al. 2011), whose counter is the
        step.
        """
        if self.seed is None:
            raise ValueError("expected a seed")
        bits = np.random.Philox(key=np.array([self.seed, self.index], np.uint64), counter=step)
        return float(np.random.Generator(bits).random())

    def probabilities(self, scores: NDArray[np.float32]) -> NDArray[np.float64]:
        """The probabilities that tokens are drawn with, from scores [V]; in the order of Hugging
        Face: temperature, top_k, top_p, min_p.
        """
        # Differences to the largest: however low the temperature, none of them overflows to NaN.
        with np.errstate(over="ignore"):
            logits = (scores.astype(np.float64) - scores.max()) / self.temperature
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


class SampleSearch(SingleSearch):
    """See `Sample`."""

    def __init__(self, strategy: Sample, request: Request) -> None:
        super().__init__(request)
        self._strategy = strategy

    def _sees_logits(self, count: int) -> bool:
        return True

    def _pick(self, scores: NDArray[np.float32], count: int) -> int:
        cumulative = np.cumsum(self._strategy.probabilities(scores))
        drawn = self._strategy.uniform(count) * cumulative[-1]
        return int(np.searchsorted(cumulative, drawn, side="right"))


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
            kept[best[0]] = True  # a share of 0 leaves the most probable one
            return kept
        size = min(8 * size, len(probabilities))
