"""The metrics by the names that the command line takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from dragoman.errors import DragomanError

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
"""The name for the probability of references, which parity takes besides metrics of texts."""

METRIC_NAMES = (*METRICS, PERPLEXITY)

LIBRARIES = {
    "bleu": "sacrebleu",
    "chrf": "sacrebleu",
    "word-error": "rapidfuzz",
    "rouge-l": "rouge_score",
}


def find_metric(name: str, language: str | None = None) -> Metric:
    """Find a metric that can be computed here.

    Args:
        name: one of `METRICS`
        language: what the texts are in, if it is known, which BLEU splits into words accordingly

    Raises:
        DragomanError: there is no such metric of texts, or its library is missing.
    """
    metric = METRICS.get(name)
    if metric is None:
        raise DragomanError(f"metric: expected one of {', '.join(METRICS)}, found {name!r}")
    if name in LIBRARIES:
        check_library(metric.name, LIBRARIES[name])
    if isinstance(metric, SacreBleu) and metric.name == "BLEU":
        return dataclasses.replace(metric, tokenize=tokenization(language))
    return metric


def check_metrics(names: Sequence[str]) -> None:
    """Check the names of metrics.

    Raises:
        DragomanError: one is not among `METRIC_NAMES`, or its library is missing.
    """
    for name in names:
        if name not in METRIC_NAMES:
            raise DragomanError(
                f"metric: expected one of {', '.join(METRIC_NAMES)}, found {name!r}"
            )
        if name != PERPLEXITY:
            find_metric(name)


def describe_undecided(name: str, loss: float, allowed: float, texts: int, more: int | None) -> str:
    """Describe a loss that is more than is allowed, but not significantly.

    Args:
        name: of the metric, as people write it
        loss, allowed: in its figures
        texts: that were scored
        more: about how many more would decide; None: unknown
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
        name: of the metric; an unknown one is a share of errors
    """
    for metric in METRICS.values():
        if metric.name == name:
            return metric.shown(figure)
    return f"{figure:.2%}"
