"""The interface of metrics, and the paired bootstrap test."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError

RESAMPLES = 1000
SEED = 12345

References = Sequence[Sequence[str]]
"""The references of each text, at least one; every reference counts as correct."""


class Metric(Protocol):
    """A metric, which computes a figure for texts from references."""

    @property
    def name(self) -> str:
        """The usual name, such as "BLEU"."""

    @property
    def higher_is_better(self) -> bool:
        """Whether a higher figure is better."""

    @property
    def whole(self) -> float:
        """The figure that stands for 100 %: 100 for points, 1 for shares."""

    def shown(self, figure: float) -> str:
        """Format a figure: points such as "41.02", shares such as "5.60%"."""

    def figure(self, hypotheses: Sequence[str], references: References) -> float:
        """Compute the figure.

        Raises:
            DragomanError: there are no texts, one has no reference, or nothing in the references
                can be compared.
        """

    def signature(self, references: References = ()) -> str:
        """Describe how a figure was computed, in the form of sacrebleu's signatures.

        Args:
            references: empty: one for each text
        """

    def chance(self, oracle: Sequence[str], bundle: Sequence[str], references: References) -> float:
        """Compute the p-value of the difference between two outputs for the same sources.

        The test is a two-sided paired bootstrap. Below 0.05, a difference is usually called
        significant. The value is 1 for equal figures or a single text, and too small for a few
        texts.

        Raises:
            DragomanError: as `figure`
        """

    def spread(self, oracle: Sequence[str], bundle: Sequence[str], references: References) -> float:
        """Compute the standard error of the difference between two outputs for the same sources.

        It is estimated by a paired bootstrap, and 0 for a single text.

        Raises:
            DragomanError: as `figure`
        """


def check_pairs(hypotheses: Sequence[str], references: References) -> None:
    """Check that every text has a reference."""
    if not hypotheses:
        raise DragomanError("expected at least one text to score, found none")
    if len(hypotheses) != len(references):
        raise DragomanError(
            f"expected references for {len(hypotheses)} texts, found them for {len(references)}"
        )
    without = next((n for n, found in enumerate(references, start=1) if not found), None)
    if without is not None:
        raise DragomanError(f"expected at least one reference for text {without}, found none")


def check_library(metric: str, library: str | None) -> None:
    """Check that the distribution that computes a metric, if it needs one, is installed."""
    if library is not None and importlib.util.find_spec(library.replace("-", "_")) is None:
        raise DragomanError(
            f"{metric} needs the package {library}: pip install 'dragoman[metrics]'"
        )


def bootstrap_chance(oracle: NDArray[np.float64], bundle: NDArray[np.float64]) -> float:
    """Compute the p-value of a difference between two ratios of sums over segments.

    The test is that of "Statistical Significance Tests for Machine Translation Evaluation" (Koehn
    2004) with the shift of "On Some Pitfalls in Automatic Evaluation and Significance Testing for
    MT" (Riezler and Maxwell 2005), as in `sacrebleu`, by numerators and denominators [N, 2].
    """
    observed = abs(ratio(oracle.sum(0)) - ratio(bundle.sum(0)))
    if len(oracle) == 1 or observed == 0:
        return 1.0
    apart = np.abs(resampled(oracle, bundle, ratio))
    further = int(np.count_nonzero(apart - apart.mean() > observed))
    return (further + 1) / (RESAMPLES + 1)  # the observed difference counts as one of them


def resampled(
    oracle: NDArray[np.float64],
    bundle: NDArray[np.float64],
    figure: Callable[[NDArray[np.float64]], float],
) -> NDArray[np.float64]:
    """Compute the differences between two outputs in paired bootstrap resamples.

    Args:
        oracle, bundle: statistics of each segment [N, statistics]
        figure: computes the figure from sums of statistics
    """
    generator = np.random.default_rng(SEED)
    differences = np.empty(RESAMPLES)
    for n in range(RESAMPLES):
        rows = generator.integers(len(oracle), size=len(oracle))
        differences[n] = figure(bundle[rows].sum(0)) - figure(oracle[rows].sum(0))
    return differences


class RatioMetric(ABC):
    """A metric that is a ratio of two sums over all texts, tested by resampling them."""

    whole: float

    def chance(self, oracle: Sequence[str], bundle: Sequence[str], references: References) -> float:
        """Compute the p-value of a difference."""
        check_pairs(oracle, references)
        if list(oracle) == list(bundle):
            return 1.0
        return bootstrap_chance(self._sums(oracle, references), self._sums(bundle, references))

    def spread(self, oracle: Sequence[str], bundle: Sequence[str], references: References) -> float:
        """Compute the standard error of a difference."""
        sums = self._sums(oracle, references), self._sums(bundle, references)
        return self.whole * float(resampled(*sums, ratio).std())

    @abstractmethod
    def _sums(self, hypotheses: Sequence[str], references: References) -> NDArray[np.float64]:
        """Compute the numerator and the denominator of each text, [N, 2]."""


def ratio(sums: NDArray[np.float64]) -> float:
    """Divide a numerator by a denominator, which may be 0 in a resample."""
    return float(sums[0] / max(sums[1], 1))
