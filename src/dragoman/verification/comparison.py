"""Options of a comparison, and descriptions of random inputs.

Random inputs say nothing about quality. A reader of a parity record recognizes them by their
description. This module imports neither PyTorch nor ONNX, so that a report can be written without
them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Comparison:
    """The options of a comparison.

    Attributes:
        inputs: a file of texts, one per line, references after tabs; or a directory of audio clips,
            or a list of them, transcripts after tabs; None: the sources of `references`, the
            checkpoint's held-out data, or random inputs if there is neither
        limit: the maximum number of inputs; None: all
        references: a file whose lines are a source, a tab and a reference, or only references, one
            for each input; None: the references after tabs in `inputs`, if every line has one
        metrics: names from `metrics.METRIC_NAMES`, the most important one first; None: the default
            metrics of the model's task
        source_language, target_language: languages of a multilingual model; None: its defaults
    """

    inputs: Path | None = None
    limit: int | None = None
    references: Path | None = None
    metrics: Sequence[str] | None = None
    source_language: str | None = None
    target_language: str | None = None


_DESCRIPTION = re.compile(r"\d+ (random sources|windows of random sound) \(seed \d+\)")


def describe_sources(count: int, seed: int) -> str:
    """Describe random token ids."""
    return f"{count} random sources (seed {seed})"


def describe_windows(count: int, seed: int) -> str:
    """Describe windows of random sound."""
    return f"{count} windows of random sound (seed {seed})"


def are_random(description: str) -> bool:
    """Whether a description is one of random inputs, and not the name of a file."""
    return _DESCRIPTION.fullmatch(description) is not None
