"""Metrics that compare texts with references, by the names that the command line takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from dragoman.errors import DragomanError, shown

from .metric import Metric, References, check_library
from .sacrebleu_metrics import SacreBleu, bleu_with, tokenization
from .segment_metrics import CHARACTER_ERROR, EXACT_MATCH, ROUGE_L, WORD_ERROR, SegmentMetric

__all__ = [
    "METRICS",
    "METRIC_NAMES",
    "PERPLEXITY",
    "Metric",
    "check_metrics",
    "describe_undecided",
    "find_metric",
    "metrics_that_judge",
    "name_of",
    "shown_figure",
]

METRICS: Mapping[str, SacreBleu | SegmentMetric] = MappingProxyType(
    {
        "bleu": SacreBleu("BLEU"),
        "chrf": SacreBleu("chrF"),
        "word-error": WORD_ERROR,
        "character-error": CHARACTER_ERROR,
        "exact-match": EXACT_MATCH,
        "rouge-l": ROUGE_L,
    }
)

PERPLEXITY = "perplexity"
"""The name of the perplexity of references, which parity accepts besides metrics of texts."""

METRIC_NAMES = (*METRICS, PERPLEXITY)


def find_metric(name: str, language: str | None = None) -> Metric:
    """Find a metric whose library is installed.

    Args:
        name: one of `METRICS`, or "bleu:TOKENIZER" with one of `BLEU_TOKENIZERS`
        language: the language of the texts, if it is known; BLEU splits words accordingly

    Raises:
        DragomanError: the metric is unknown, or its library is missing.
    """
    if name.startswith("bleu:"):
        check_library("BLEU", METRICS["bleu"].library)
        return bleu_with(name.removeprefix("bleu:"))
    metric = METRICS.get(name)
    if metric is None:
        raise DragomanError(f"metric: expected one of {', '.join(METRICS)}, found {shown(name)}")
    check_library(metric.name, metric.library)
    if isinstance(metric, SacreBleu) and metric.name == "BLEU":
        return replace(metric, tokenize=tokenization(language))
    return metric


def check_metrics(names: Sequence[str]) -> None:
    """Check the names of metrics.

    Raises:
        DragomanError: a name is not in `METRIC_NAMES`, or a library is missing.
    """
    for name in names:
        if name not in METRIC_NAMES and not name.startswith("bleu:"):
            raise DragomanError(
                f"metric: expected one of {', '.join(METRIC_NAMES)}, found {shown(name)}"
            )
        if name != PERPLEXITY:
            find_metric(name)


def metrics_that_judge(
    metrics: Sequence[Metric], references: References
) -> tuple[list[Metric], str]:
    """Replace BLEU where it is 0 for every output, as for references of one to three words.

    BLEU needs four words in a row, which texts without spaces are not to most of its tokenizers.

    Returns:
        the metrics, and a remark on what was replaced; empty if nothing was
    """
    first = [each[0] for each in references]
    blind = [
        metric
        for metric in metrics
        if isinstance(metric, SacreBleu)
        and metric.name.startswith("BLEU")
        and metric.figure(first, references) == 0
    ]
    if not blind:
        return list(metrics), ""
    kept = [metric for metric in metrics if metric not in blind]
    added = [m for m in (METRICS["chrf"], EXACT_MATCH) if m.name not in {k.name for k in kept}]
    chosen = [*kept, *added]
    return chosen, (
        f"{' and '.join(metric.name for metric in blind)} is not computed, since it is 0 for the "
        f"references themselves (no four words in a row); "
        f"{' and '.join(metric.name for metric in chosen)} judge the outputs"
    )


def name_of(metric: Metric) -> str:
    """Return the name by which `find_metric` finds a metric."""
    base, _, tokenizer = metric.name.removesuffix(")").partition(" (")
    found = next(name for name, each in METRICS.items() if each.name == base)
    return f"{found}:{tokenizer}" if tokenizer else found


def describe_undecided(name: str, loss: float, allowed: float, texts: int, more: int | None) -> str:
    """Describe a loss that exceeds the allowed loss, but not significantly.

    Args:
        name: the metric's `name`, such as "BLEU"
        more: an estimate of the number of further texts needed; None: unknown
    """
    base = name.partition(" (")[0]
    metric = next((metric for metric in METRICS.values() if metric.name == base), None)
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
        if metric.name == name.partition(" (")[0]:
            return metric.shown(figure)
    return f"{figure:.2%}"
