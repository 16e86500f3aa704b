"""Recipes of translation: a model, a vocabulary and a training for pairs of texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from dragoman.metrics import find_metric
from dragoman.metrics.sacrebleu_metrics import SacreBleu

from ..config import ModelConfig
from ..training import TrainingOptions
from .examples import Example
from .recipe import Data, Recipe
from .tokenizers import Vocabulary, train_tokenizers

METRICS = ("bleu", "chrf")


def translation_recipe(
    name: str,
    summary: str,
    model: Mapping[str, object],
    vocabulary: Vocabulary,
    options: TrainingOptions,
    load_data: Callable[[Path | None], Data],
    *,
    licences: Mapping[str, Callable[[], str]],
    duration: str = "",
    alignment_layer: int | None = None,
) -> Recipe:
    """Make a recipe of translation.

    Args:
        model: fields of `ModelConfig`, except for the sizes of the vocabularies

    Raises:
        ConfigError: a field of the model is unknown or out of range.
    """
    config = ModelConfig.from_dict(
        {
            "tie_source_target": vocabulary.shared,
            **model,
            "source_vocab_size": vocabulary.size,
            "target_vocab_size": vocabulary.size,
        }
    )
    return Recipe(
        name=name,
        summary=summary,
        config=config,
        options=options,
        load_data=load_data,
        make_tokenizers=lambda data: train_tokenizers(vocabulary, data.train),
        metric="BLEU",
        score=partial(score, lowercase=vocabulary.lowercase),
        metrics=METRICS,
        licences=licences,
        duration=duration,
        alignment_layer=alignment_layer,
        vocabulary=repr(vocabulary),
        shown="{:.2f}".format,
    )


def score(
    hypotheses: Sequence[str], examples: Sequence[Example], *, lowercase: bool = False
) -> dict[str, float]:
    """Compute BLEU and chrF of the corpus, from 0 to 100.

    Args:
        lowercase: whether to ignore case, for a model that outputs lower case only
    """
    references = [example.references for example in examples]
    for name in METRICS:
        find_metric(name)  # raises if its library is not installed
    both = (SacreBleu("BLEU", lowercase=lowercase), SacreBleu("chrF", lowercase=lowercase))
    return {metric.name: metric.figure(hypotheses, references) for metric in both}
