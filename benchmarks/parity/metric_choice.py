"""Which metrics a model is judged by, if there are references."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.export.opened_checkpoint import OpenedCheckpoint
from dragoman.metrics import PERPLEXITY, Metric, find_metric

from .recipe_metric import RecipeMetric


def text_metrics(
    checkpoint: OpenedCheckpoint,
    names: Sequence[str] | None,
    language: str | None = None,
    sources: Sequence[str] = (),
) -> list[Metric]:
    """The metrics of outputs, the one that counts most first; none if only the probability of
    references counts.

    Args:
        names: of `metrics.METRIC_NAMES`; None: what the model was trained for tells: a recipe its
            metrics or its own score, speech word error, summaries ROUGE-L, any other text BLEU and
            chrF; outputs of a decoder alone have many right continuations, and none of these
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
