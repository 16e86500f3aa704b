"""Greedy search and sampling: searches with one hypothesis."""

from __future__ import annotations

import dataclasses
import math
import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..backends.prediction import best_tokens
from .request import Request
from .search import (
    SELECTED_TOKENS,
    NextTokens,
    RequiredOutputs,
    StepScores,
    TokenSequence,
    finish,
    first_sequence,
)


class SingleSearch(ABC):
    """The search for one output, token by token."""

    def __init__(self, request: Request) -> None:
        self._rules = request.rules
        self.sequence = first_sequence(request)
        self.finished = self.sequence.count > 0 and finish(self.sequence, self._rules)
        self._outputs = [self.sequence]
        self._scores: list[float] = []
        """Log-probability of each new token under the rules."""

    def required_outputs(self) -> RequiredOutputs:
        """Return the outputs of the next step that `advance` requires."""
        count = self.sequence.count + 1
        if self._rules.forced_at(count) is not None:
            return SELECTED_TOKENS
        return RequiredOutputs(self._rules.alternatives, self._reads_logits(count))

    def advance(self, step: StepScores, row: int) -> NextTokens:
        """Append the next token to the output."""
        rules, sequence = self._rules, self.sequence
        count = sequence.count + 1
        forced = rules.forced_at(count)
        if forced is not None:
            sequence.append(forced, 0.0)
        else:
            token, log_probability, score = self._choose(step, row, count)
            if rules.forbid(sequence.row, token):  # the rules leave no token
                self._outputs, self.finished = [], True
                return NextTokens([token])
            sequence.append(token, log_probability, step.alternatives(row, rules.alternatives))
            self._scores.append(score)
        self.finished = finish(sequence, rules)
        if self.finished:
            sequence.score = math.fsum(self._scores)
        return NextTokens([sequence.row.tokens[-1]])

    def outputs(self) -> list[TokenSequence]:
        """Return the output; empty if the rules leave no token."""
        return self._outputs

    @abstractmethod
    def _reads_logits(self, count: int) -> bool:
        """Return whether the choice of the count-th new token requires all logits."""

    @abstractmethod
    def _pick(self, scores: NDArray[np.float32], count: int) -> int:
        """Choose the count-th new token by scores [V]; at least one is finite."""

    def _choose(self, step: StepScores, row: int, count: int) -> tuple[int, float, float]:
        """Choose an allowed token; return it with the model's own log-probability and its score.

        If no token is allowed, token 0 is chosen, as in Hugging Face, with log-probability 0. If a
        prohibition excludes it, there is no output.
        """
        scores: NDArray[np.float32] = step.logits(row, 1)[0]
        self._rules.apply(scores, self.sequence.row, count)
        if scores.max() == -np.inf:
            return 0, 0.0, 0.0
        token = self._pick(scores, count)
        log_probability = step.logit(row, token) - step.allowed_normalizer(row)
        if not self._rules.renormalize:
            return token, log_probability, log_probability
        return token, log_probability, float(scores[token]) - self._rules.normalizer(scores)


@dataclass(frozen=True)
class Greedy:
    """The strategy of greedy search: the most probable token at each step."""

    @property
    def width(self) -> int:
        """The number of batch rows for a request."""
        return 1

    def begin(self, request: Request) -> GreedySearch:
        """Begin the search for the output of a request."""
        return GreedySearch(request)


class GreedySearch(SingleSearch):
    """Greedy search; without active rules, the graph selects tokens and logits are not read."""

    def _reads_logits(self, count: int) -> bool:
        return bool(self._rules.active(count))

    def _choose(self, step: StepScores, row: int, count: int) -> tuple[int, float, float]:
        if not self._reads_logits(count):
            token, log_probability = step.selected(row)
            return token, log_probability, log_probability
        return super()._choose(step, row, count)

    def _pick(self, scores: NDArray[np.float32], count: int) -> int:
        return int(scores.argmax())


NUCLEUS = 256
"""Number of tokens to sort first in the search for the `top_p` nucleus, which is rarely larger."""


@dataclass(frozen=True)
class Sample:
    """The strategy of sampling: each token is drawn with its probability."""

    seed: int | None
    """Seed of the random numbers. The number for a token depends only on the seed, `index` and the
    token's position, not on the batch, its order or the threads. None: a new seed for every
    request."""
    index: int = 0
    """Number of this sample among the samples of one input."""
    temperature: float = 1.0
    """Divisor of logits."""
    top_k: int = 0
    """Number of most probable tokens to draw from; 0: all."""
    top_p: float = 1.0
    """Total probability of the most probable tokens to draw from (nucleus sampling, Holtzman et al.
    2020)."""
    min_p: float = 0.0
    """Minimum probability of tokens, relative to the most probable token."""

    @property
    def width(self) -> int:
        """The number of batch rows for a request."""
        return 1

    def begin(self, request: Request) -> SampleSearch:
        """Begin the search for the output of a request."""
        if self.seed is None:
            return SampleSearch(dataclasses.replace(self, seed=secrets.randbits(64)), request)
        return SampleSearch(self, request)

    def uniform(self, step: int) -> float:
        """Return the random number of a step, in [0, 1).

        The generator is Philox (Salmon et al. 2011), whose counter is the step.
        """
        if self.seed is None:
            raise ValueError("expected a seed")
        bits = np.random.Philox(key=np.array([self.seed, self.index], np.uint64), counter=step)
        return float(np.random.Generator(bits).random())

    def probabilities(self, scores: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the sampling probabilities of tokens for scores [V].

        Options apply in the order of Hugging Face: temperature, top_k, top_p, min_p.
        """
        # Differences to the largest logit do not overflow to NaN at low temperatures.
        with np.errstate(over="ignore"):
            logits = (scores.astype(np.float64) - scores.max()) / self.temperature
        if 0 < self.top_k < len(logits):
            least = scores[best_tokens(scores[None], self.top_k)[0, -1]]
            logits[scores < least] = -np.inf  # ties with the last are kept
        probabilities = _softmax(logits)
        if self.top_p < 1:
            probabilities[~_nucleus(probabilities, self.top_p)] = 0
            probabilities /= probabilities.sum()
        if self.min_p > 0:
            probabilities[probabilities < self.min_p * probabilities.max()] = 0
            probabilities /= probabilities.sum()
        return probabilities


class SampleSearch(SingleSearch):
    """The search for one sample."""

    def __init__(self, strategy: Sample, request: Request) -> None:
        super().__init__(request)
        self._strategy = strategy

    def _reads_logits(self, count: int) -> bool:
        return True

    def _pick(self, scores: NDArray[np.float32], count: int) -> int:
        cumulative = np.cumsum(self._strategy.probabilities(scores))
        drawn = self._strategy.uniform(count) * cumulative[-1]
        return int(np.searchsorted(cumulative, drawn, side="right"))


@dataclass(frozen=True)
class BestSample:
    """The strategy of drawing several samples, of which the most probable one is the output.

    Samples are ranked by log-probability / length, as in openai-whisper.
    """

    samples: Sequence[Sample]

    @property
    def width(self) -> int:
        """The number of batch rows for a request."""
        return len(self.samples)

    def begin(self, request: Request) -> BestSampleSearch:
        """Begin the search for the output of a request."""
        return BestSampleSearch([sample.begin(request) for sample in self.samples])


class BestSampleSearch:
    """The search for the most probable of several samples, one in each row."""

    def __init__(self, searches: Sequence[SampleSearch]) -> None:
        self._searches = searches
        self.sequence = searches[0].sequence
        """The prefix is appended to it, and copied to the others before the first new token."""
        self._lacking: int | None = len(self.sequence.row.tokens)
        """Index of the first token that the others lack; None: they lack none."""

    def required_outputs(self) -> RequiredOutputs:
        """Return the outputs of the next step that `advance` requires."""
        return RequiredOutputs(logits=True)

    def advance(self, step: StepScores, row: int) -> NextTokens:
        """Append the next token to every unfinished sample."""
        if self._lacking is not None:
            for other in (search.sequence for search in self._searches[1:]):
                for token in self.sequence.row.tokens[self._lacking :]:
                    other.append_prefix(token)
            self._lacking = None
        for index, search in enumerate(self._searches):
            if not search.finished:
                search.advance(step, row + index)
        return NextTokens([search.sequence.row.tokens[-1] for search in self._searches])

    @property
    def finished(self) -> bool:
        """Whether all samples are complete."""
        return all(search.finished for search in self._searches)

    def outputs(self) -> list[TokenSequence]:
        """Return the samples, best first; empty if the rules leave no token."""
        samples = [sequence for search in self._searches for sequence in search.outputs()]
        return sorted(samples, key=lambda s: s.score / max(1, len(s.tokens)), reverse=True)


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(logits - logits.max())
    result: NDArray[np.float64] = powers / powers.sum()
    return result


def _nucleus(probabilities: NDArray[np.float64], share: float) -> NDArray[np.bool_]:
    size = min(NUCLEUS, len(probabilities))
    while True:
        best = np.argpartition(-probabilities, size - 1)[:size]
        best = best[np.argsort(-probabilities[best], kind="stable")]
        before = np.cumsum(probabilities[best]) - probabilities[best]
        if before[-1] >= share or size == len(probabilities):
            kept = np.zeros(len(probabilities), np.bool_)
            kept[best[before < share]] = True
            kept[best[0]] = True  # a share of 0 keeps the most probable token
            return kept
        size = min(8 * size, len(probabilities))
