"""Qualities of translation as a record and a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from ..circumstances import Circumstances
from ..closing import show_circumstances
from .measuring import Figure


@dataclass(frozen=True)
class Qualities:
    """
    Attributes:
        model: its name
        training: what the checkpoint's recipe.json says, and the figures of every epoch
    """

    model: str
    figures: Sequence[Figure]
    training: dict[str, Any]
    circumstances: Circumstances

    def to_json(self) -> str:
        record = asdict(self)
        circumstances = record.pop("circumstances")
        return json.dumps(record | circumstances, indent=1) + "\n"


def show(qualities: Qualities, console: Console) -> None:
    figures = qualities.figures
    tokens = any(figure.scores.bleu_of_tokens is not None for figure in figures)
    published = any(figure.published is not None for figure in figures)
    table = Table(title=f"quality of {qualities.model}", title_justify="left")
    headings = ["set", "precision", "decoding"]
    headings += ["BLEU of tokens"] if tokens else []
    headings += ["published"] if published else []
    for heading in (*headings, "BLEU", "chrF"):
        left = heading in ("set", "precision", "decoding")
        table.add_column(heading, justify="left" if left else "right")
    for figure in figures:
        found = figure.scores
        row = [figure.test, figure.precision, decoding(figure.beams)]
        row += [_points(found.bleu_of_tokens)] if tokens else []
        row += [_points(figure.published)] if published else []
        table.add_row(*row, _points(found.bleu), _points(found.chrf))
    console.print(table)
    for signature in dict.fromkeys(
        line
        for figure in figures
        for line in (
            f"BLEU {figure.scores.bleu_signature}",
            f"chrF {figure.scores.chrf_signature}",
        )
    ):
        console.print(signature, soft_wrap=True, markup=False, highlight=False)
    show_circumstances(console, qualities.circumstances, ())


def decoding(beams: int) -> str:
    return "greedy" if beams == 1 else f"{beams} beams"


def _points(figure: float | None) -> str:
    return "" if figure is None else f"{figure:.2f}"
