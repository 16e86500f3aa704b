"""The score of a recipe as a metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dragoman.metrics import bootstrap
from dragoman.metrics.metric import References, check_pairs
from dragoman.reference_model.recipes import Example, Recipe


@dataclass(frozen=True)
class RecipeMetric:
    """The figure that a recipe's training reports: a share of errors, the mean over examples.

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
        return self.recipe.metric

    def shown(self, figure: float) -> str:
        return self.recipe.shown(figure)

    def figure(self, hypotheses: Sequence[str], references: References) -> float:
        check_pairs(hypotheses, references)
        assert self.recipe.score is not None
        examples = [Example(s, tuple(r)) for s, r in zip(self.sources, references, strict=True)]
        return self.recipe.score(hypotheses, examples)[self.recipe.metric]

    def chance(self, oracle: Sequence[str], bundle: Sequence[str], references: References) -> float:
        def each(hypotheses: Sequence[str]) -> list[tuple[float, float]]:
            score = self.recipe.score
            assert score is not None
            return [
                (score([text], [Example(source, tuple(right))])[self.recipe.metric], 1)
                for text, source, right in zip(hypotheses, self.sources, references, strict=True)
            ]

        return bootstrap.chance(np.array(each(oracle)), np.array(each(bundle)))

    def signature(self, references: References = ()) -> str:
        return f"recipe:{self.recipe.name}"
