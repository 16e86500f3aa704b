"""What every metric knows and does."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Protocol

from dragoman.errors import DragomanError

References = Sequence[Sequence[str]]
"""Of each text, every text that counts as right: at least one."""


class Metric(Protocol):
    """A figure for texts, from references."""

    @property
    def name(self) -> str:
        """As people write it, such as "BLEU"."""

    @property
    def higher_is_better(self) -> bool: ...

    @property
    def whole(self) -> float:
        """What 100 % are in the metric's figures: 100 for points, 1 for shares."""

    def shown(self, figure: float) -> str:
        """A figure as people read it: points such as "41.02", shares such as "5.60%"."""

    def figure(self, hypotheses: Sequence[str], references: References) -> float:
        """
        Raises:
            DragomanError: there are no texts, one has no reference, or nothing in the references
                can be compared.
        """

    def signature(self, references: References = ()) -> str:
        """What a figure was computed with, as the literature asks for.

        Args:
            references: those of the figure, for their number; none: one for each text
        """

    def chance(self, oracle: Sequence[str], bundle: Sequence[str], references: References) -> float:
        """The probability that a difference as large between two outputs for the same sources is
        due to the choice of the sources: the p-value of a paired bootstrap.

        It is two-sided: it does not matter which of the outputs is better. Below 0.05 a difference
        is usually called significant. It is 1 where the figures are equal, and for a single text,
        which says nothing; of a few texts it is too small.

        Raises:
            DragomanError: as `figure`
        """

    def spread(self, oracle: Sequence[str], bundle: Sequence[str], references: References) -> float:
        """The standard error of the difference between the figures of two outputs for the same
        sources, by a paired bootstrap; 0 for a single text, which says nothing.

        Raises:
            DragomanError: as `figure`
        """


def check_pairs(hypotheses: Sequence[str], references: References) -> None:
    """
    Raises:
        DragomanError: there are no texts, another number of references, or a text without one.
    """
    if not hypotheses:
        raise DragomanError("expected at least one text to score, found none")
    if len(hypotheses) != len(references):
        raise DragomanError(
            f"expected references for {len(hypotheses)} texts, found them for {len(references)}"
        )
    without = next((n for n, found in enumerate(references, start=1) if not found), None)
    if without is not None:
        raise DragomanError(f"expected at least one reference for text {without}, found none")


def check_library(metric: str, module: str) -> None:
    """
    Raises:
        DragomanError: the library that a metric is computed with is missing.
    """
    if importlib.util.find_spec(module) is None:
        raise DragomanError(
            f"{metric} needs the package {module.replace('_', '-')}: pip install "
            "'dragoman[metrics]'"
        )
