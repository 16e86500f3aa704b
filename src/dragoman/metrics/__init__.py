"""Metrics that compare texts with references."""

from .metric import Metric
from .table import (
    METRIC_NAMES,
    METRICS,
    PERPLEXITY,
    check_metrics,
    describe_undecided,
    find_metric,
    metrics_that_judge,
    name_of,
    shown_figure,
)

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
