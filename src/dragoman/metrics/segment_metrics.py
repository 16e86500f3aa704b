"""Metrics that are a ratio of two sums over all texts."""

from __future__ import annotations

import importlib.metadata
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError, shown

from .metric import RatioMetric, References, check_pairs, ratio

NORMALIZATION = "NFKC, lower case, no punctuation"
"""The normalization of words, for signatures."""

Score = Callable[[str, Sequence[str]], tuple[float, float]]
"""Maps a text and its references to its summands in the numerator and the denominator."""


@dataclass(frozen=True)
class SegmentMetric(RatioMetric):
    """A metric that is a ratio of two sums over all texts."""

    name: str
    higher_is_better: bool
    whole: float
    scorer: Callable[[], Score]
    """A function that imports the library and returns the score function."""
    library: str | None
    """The distribution that computes the metric; None: no library is needed."""
    settings: str
    needed: str
    """A description of valid references, for errors."""

    def shown(self, figure: float) -> str:
        """Format a figure."""
        return f"{figure:.2f}" if self.whole == 100 else f"{figure:.2%}"

    def figure(self, hypotheses: Sequence[str], references: References) -> float:
        """Compute the figure."""
        return self.whole * ratio(self._sums(hypotheses, references).sum(0))

    def signature(self, references: References = ()) -> str:
        """Describe how the figure was computed."""
        counts = set(map(len, references)) or {1}
        number = counts.pop() if len(counts) == 1 else "var"
        made = f"|{self.library}:{importlib.metadata.version(self.library)}" if self.library else ""
        return f"nrefs:{number}|{self.settings}{made}"

    def _sums(self, hypotheses: Sequence[str], references: References) -> NDArray[np.float64]:
        check_pairs(hypotheses, references)
        score = self.scorer()
        sums = np.array([score(*pair) for pair in zip(hypotheses, references, strict=True)])
        if not sums[:, 1].any():
            raise DragomanError(
                f"{self.name}: expected {self.needed}, found none in {shown(references[0][0])}"
                f"{' and all others' if len(references) > 1 else ''}"
            )
        return sums


def words_of(text: str) -> list[str]:
    """Split a text at punctuation, symbols and spaces into lower case words with apostrophes."""
    plain = (
        unicodedata.normalize("NFKC", text).lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    )
    kept = (c if c == "'" or unicodedata.category(c)[0] in "LMN" else " " for c in plain)
    return "".join(kept).split()


def _exact() -> Score:
    def score(hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
        text = hypothesis.split()
        return any(text == reference.split() for reference in references), 1

    return score


def _errors(split: Callable[[str], Sequence[str]]) -> Score:
    from rapidfuzz.distance import Levenshtein

    def score(hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
        parts = split(hypothesis)
        candidates = map(split, references)
        counts = [(Levenshtein.distance(parts, right), len(right)) for right in candidates]
        return min(counts, key=lambda count: count[0] / max(count[1], 1))

    return score


def _longest_common_subsequences() -> Score:
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"], use_stemmer=True)

    def score(hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
        """Compute the F1 with the best reference; 0 of 0 if no reference has letters or digits."""
        if not any(map(readable, references)):
            return 0, 0
        return scorer.score_multi(references, hypothesis)["rougeL"].fmeasure, 1

    def readable(text: str) -> bool:
        return any(c.isascii() and c.isalnum() for c in text)

    return score


EXACT_MATCH = SegmentMetric(
    name="exact match",
    higher_is_better=True,
    whole=1,
    scorer=_exact,
    library=None,
    settings="case:mixed|space:no",
    needed="texts",
)
"""The share of texts that equal a reference; the length of spaces does not count."""

WORD_ERROR = SegmentMetric(
    name="word error",
    higher_is_better=False,
    whole=1,
    scorer=lambda: _errors(words_of),
    library="rapidfuzz",
    settings=f"norm:{NORMALIZATION}",
    needed="references with words",
)
"""The word error rate: insertions, deletions and substitutions over the words of the references."""

CHARACTER_ERROR = SegmentMetric(
    name="character error",
    higher_is_better=False,
    whole=1,
    scorer=lambda: _errors(lambda text: " ".join(text.split())),
    library="rapidfuzz",
    settings="case:mixed|space:one",
    needed="references with characters",
)
"""The character error rate: insertions, deletions and substitutions over the characters of the
references, with single spaces."""

ROUGE_L = SegmentMetric(
    name="ROUGE-L",
    higher_is_better=True,
    whole=100,
    scorer=_longest_common_subsequences,
    library="rouge-score",
    settings="rougeL|F1|stemmer:porter",
    needed="references with letters a to z or digits, which are all that rouge-score reads",
)
"""The F1 of longest common subsequences of words, averaged over texts."""
