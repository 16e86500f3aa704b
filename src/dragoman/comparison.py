"""What a user asks a bundle to be compared on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Comparison:
    """
    Attributes:
        inputs: a file of texts, one per line, references after tabs; or a directory of audio clips,
            or a list of them, transcripts after tabs; None: the sources of `references`, the
            checkpoint's held-out data, or random inputs if there is neither
        limit: the most inputs, with their references; None: all
        references: a file whose lines are a source, a tab and a reference, or references alone, one
            for each input; None: the references after tabs in `inputs`, if every line has one
        metrics: of `metrics.METRIC_NAMES`, the one that counts most first; None: what the model was
            trained for tells
        source_language, target_language: of a multilingual model; None: its defaults
    """

    inputs: Path | None = None
    limit: int | None = None
    references: Path | None = None
    metrics: Sequence[str] | None = None
    source_language: str | None = None
    target_language: str | None = None
