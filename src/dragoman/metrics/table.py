"""The metrics by the names that the command line takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from dragoman.errors import DragomanError, shown

from .metric import Metric, check_library
from .sacrebleu_metrics import SacreBleu, tokenization
from .segment_metrics import EXACT_MATCH, ROUGE_L, WORD_ERROR

METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "bleu": SacreBleu("BLEU"),
        "chrf": SacreBleu("chrF"),
        "word-error": WORD_ERROR,
        "exact-match": EXACT_MATCH,
        "rouge-l": ROUGE_L,
    }
)

PERPLEXITY = "perplexity"
"""The name of the perplexity of references, which parity accepts besides metrics of texts."""

METRIC_NAMES = (*METRICS, PERPLEXITY)

LIBRARIES = {
    "bleu": "sacrebleu",
    "chrf": "sacrebleu",
    "word-error": "rapidfuzz",
    "rouge-l": "rouge_score",
}


def find_metric(name: str, language: str | None = None) -> Metric:
    """Find a metric whose library is installed.

    Args:
        name: one of `METRICS`
        language: the language of the texts, if it is known; BLEU splits words accordingly

    Raises:
        DragomanError: the metric is unknown, or its library is missing.
    """
    metric = METRICS.get(name)
    if metric is None:
        raise DragomanError(f"metric: expected one of {', '.join(METRICS)}, found {shown(name)}")
    if name in LIBRARIES:
        check_library(metric.name, LIBRARIES[name])
    if isinstance(metric, SacreBleu) and metric.name == "BLEU":
        return dataclasses.replace(metric, tokenize=tokenization(language))
    return metric


def check_metrics(names: Sequence[str]) -> None:
    """Check the names of metrics.

    Raises:
        DragomanError: a name is not in `METRIC_NAMES`, or a library is missing.
    """
    for name in names:
        if name not in METRIC_NAMES:
            raise DragomanError(
                f"metric: expected one of {', '.join(METRIC_NAMES)}, found {shown(name)}"
            )
        if name != PERPLEXITY:
            find_metric(name)


def describe_undecided(name: str, loss: float, allowed: float, texts: int, more: int | None) -> str:
    """Describe a loss that exceeds the allowed loss, but not significantly.

    Args:
        name: the metric's `name`, such as "BLEU"
        loss, allowed: the loss and the allowed loss, in the units of the metric
        texts: the number of scored texts
        more: an estimate of the number of further texts needed; None: unknown
    """
    metric = next((metric for metric in METRICS.values() if metric.name == name), None)
    whole = 1.0 if metric is None else metric.whole
    points, most = (
        f"{100 * value / whole:.2f}".rstrip("0").rstrip(".") for value in (loss, allowed)
    )
    scored = "1 text" if texts == 1 else f"{texts:,} texts"
    needed = "more texts" if more is None else f"about {more:,} more texts"
    return f"undecided: {points} points worse on {scored}, allowed {most}; {needed} would decide"


def shown_figure(name: str, figure: float) -> str:
    """Format a recorded figure.

    Args:
        name: the metric's `name`; unknown metrics are formatted as a share of errors
    """
    for metric in METRICS.values():
        if metric.name == name:
            return metric.shown(figure)
    return f"{figure:.2%}"
