"""The figures of speech as a record and as a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import click
from rich.console import Console
from rich.table import Table

from ..circumstances import Circumstances
from ..harness import Failure, Spread
from .measuring import Figures

HEADINGS = (
    "",
    "seconds",
    "real-time factor",
    "encoder, ms per clip",
    "decoder, ms per token",
    "word error",
    "decoder, x best peer",
    "total, x best peer",
)


@dataclass(frozen=True)
class SpeechComparison:
    """All figures of one run.

    Attributes:
        model: its name
        clips: their number
        audio_seconds: duration of all clips
    """

    model: str
    clips: int
    audio_seconds: float
    threads: int
    rounds: int
    figures: Sequence[Figures]
    failures: Sequence[Failure]
    circumstances: Circumstances

    def to_json(self) -> str:
        fields = asdict(self)
        circumstances = fields.pop("circumstances")
        fields["failures"] = {failure.contender: failure.reason for failure in self.failures}
        return json.dumps(fields | circumstances, indent=1) + "\n"


def show(comparison: SpeechComparison) -> None:
    """Print all figures, and on standard error what could not be measured."""
    table = Table(*HEADINGS)
    for figures in comparison.figures:
        table.add_row(
            figures.contender,
            _text(figures.seconds),
            f"{figures.real_time_factor:.3f}",
            _text(figures.ms_per_clip_encoder),
            _text(figures.ms_per_token_decoder),
            f"{figures.word_error:.1%}",
            *(
                "" if ratio is None else f"{ratio:.2f}"
                for ratio in (figures.decoder_ratio, figures.total_ratio)
            ),
        )
    Console(width=160).print(table)
    for failure in comparison.failures:
        click.echo(f"not measured: {failure.contender}: {failure.reason}", err=True)


def _text(values: Spread) -> str:
    median, lowest, highest = values
    return f"{median:.2f} ({lowest:.2f} to {highest:.2f})"
