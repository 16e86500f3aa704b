"""Chooses the metrics of a model's task, if there are references."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dragoman.export.checkpoints import OpenedCheckpoint
from dragoman.metrics import PERPLEXITY, Metric, bootstrap, find_metric
from dragoman.metrics.metric import References, check_pairs
from dragoman.reference_model.recipes import Example, Recipe


def text_metrics(
    checkpoint: OpenedCheckpoint,
    names: Sequence[str] | None,
    language: str | None = None,
    sources: Sequence[str] = (),
) -> list[Metric]:
    """Choose the metrics of outputs, the most important one first.

    There are none if only the probability of references counts.

    Args:
        names: of `metrics.METRIC_NAMES`; None: the usual ones of the model's task: a recipe's
            metrics or its own score, word error for speech, ROUGE-L for summaries, BLEU and chrF
            for any other text; a decoder-only model has none, since many continuations are right
        language: of the outputs, if it is known
        sources: of the outputs, which a recipe may look at

    Raises:
        DragomanError: a metric is unknown, or its library is missing.
    """
    if names is not None:
        texts = dict.fromkeys(name for name in names if name != PERPLEXITY)
        return [find_metric(name, language) for name in texts]
    recipe, config = checkpoint.recipe, checkpoint.model.config
    if recipe is not None and recipe.metrics:
        return [find_metric(name, language) for name in recipe.metrics]
    if recipe is not None:
        return [] if recipe.score is None else [RecipeMetric(recipe, sources)]
    if checkpoint.tokenizers is None or not config.has_encoder:
        return []
    if config.takes_audio:
        usual: tuple[str, ...] = ("word-error",)
    else:
        usual = ("rouge-l",) if checkpoint.summarizes else ("bleu", "chrf")
    return [find_metric(name, language) for name in usual]


@dataclass(frozen=True)
class RecipeMetric:
    """The figure that a recipe's training reports, a share of errors averaged over examples.

    Attributes:
        recipe: one with a score
        sources: of the texts that are scored
    """

    recipe: Recipe
    sources: Sequence[str]
    higher_is_better: bool = False
    whole: float = 1

    @property
    def name(self) -> str:
        """The name of the recipe's metric."""
        return self.recipe.metric

    def shown(self, figure: float) -> str:
        """Format a figure as the recipe does."""
        return self.recipe.shown(figure)

    def figure(self, hypotheses: Sequence[str], references: References) -> float:
        """Compute the mean over all examples."""
        check_pairs(hypotheses, references)
        assert self.recipe.score is not None
        examples = [Example(s, tuple(r)) for s, r in zip(self.sources, references, strict=True)]
        return self.recipe.score(hypotheses, examples)[self.recipe.metric]

    def chance(self, oracle: Sequence[str], bundle: Sequence[str], references: References) -> float:
        """Compute the p-value of a difference."""
        return bootstrap.chance(self._each(oracle, references), self._each(bundle, references))

    def spread(self, oracle: Sequence[str], bundle: Sequence[str], references: References) -> float:
        """Compute the standard error of a difference."""
        return bootstrap.spread(self._each(oracle, references), self._each(bundle, references))

    def signature(self, references: References = ()) -> str:
        """Name the recipe."""
        return f"recipe:{self.recipe.name}"

    def _each(self, hypotheses: Sequence[str], references: References) -> NDArray[np.float64]:
        """Compute the figure of each example, and 1: [N, 2]."""
        score = self.recipe.score
        assert score is not None
        figures = [
            (score([text], [Example(source, tuple(right))])[self.recipe.metric], 1)
            for text, source, right in zip(hypotheses, self.sources, references, strict=True)
        ]
        return np.array(figures, np.float64)


Decode = Callable[[Sequence[int]], str]
"""Target tokens -> their text."""


@dataclass(frozen=True)
class Task:
    """The metrics and references that outputs are judged by.

    Attributes:
        metrics: the most important one first
        references: of each text, at least one
        parts: of each text, the inputs whose outputs it consists of, in order: one, or the windows
            of a recording
    """

    metrics: Sequence[Metric]
    references: Sequence[Sequence[str]]
    parts: Sequence[Sequence[int]]

    def texts(self, outputs: Sequence[str]) -> list[str]:
        """Join the outputs of all inputs to texts."""
        return [" ".join(outputs[i].strip() for i in inputs) for inputs in self.parts]
