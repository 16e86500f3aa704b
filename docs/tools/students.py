"""Compares bundles of a teacher and its student, greedily and with beams: quality, speed and size.

    python -m docs.tools.students bible-en-es held_out.tsv OUTPUT teacher=BUNDLE student=BUNDLE ...

translates the examples of the file by every bundle, in turns, and writes OUTPUT.json and
OUTPUT.png. What stands before the bundle is its name in both.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

import click
from rich.console import Console
from rich.table import Table

from dragoman.distillation.judging import Judged, draw, judge
from dragoman.reference_model.recipes import find_recipe, read_examples
from dragoman.runtime import load
from dragoman.settings.generation import GenerationOptions


@click.command()
@click.argument("recipe")
@click.argument("held_out", type=click.Path(path_type=Path, exists=True))
@click.argument("output", type=click.Path(path_type=Path))
@click.argument("bundles", nargs=-1, required=True)
@click.option("--beams", type=click.IntRange(min=2), multiple=True, default=(2, 4))
@click.option("--threads", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
def main(
    recipe: str,
    held_out: Path,
    output: Path,
    bundles: tuple[str, ...],
    beams: tuple[int, ...],
    threads: int,
    rounds: int,
) -> None:
    """Compare BUNDLES, such as teacher=bundles/en-es, on the pairs of HELD_OUT."""
    judged_by, examples = find_recipe(recipe), read_examples(held_out)
    searches = {"greedy": 1} | {f"{number} beams": number for number in beams}
    turns: dict[str, list[Judged]] = {}
    with ExitStack() as stack:
        models = {
            name: stack.enter_context(load(path, threads=threads))
            for name, _, path in (bundle.partition("=") for bundle in bundles)
        }
        for _ in range(rounds):
            for name, model in models.items():
                for how, number in searches.items():
                    options = GenerationOptions(num_beams=number)
                    row = judge(f"{name}, {how}", model, options, judged_by, examples)
                    turns.setdefault(row.name, []).append(row)
    rows = [
        replace(own[0], sentences_per_second=median(row.sentences_per_second or 0 for row in own))
        for own in turns.values()
    ]
    spread = {
        name: [round(row.sentences_per_second or 0, 1) for row in own]
        for name, own in turns.items()
    }
    record = {"threads": threads, "rows": list(map(asdict, rows)), "sentences_per_second": spread}
    output.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    draw(rows, judged_by.metric, output.with_suffix(".png"))
    table = Table("", "MB", *rows[0].figures, "sentences/s", "lowest - highest")
    for row in rows:
        speeds = spread[row.name]
        table.add_row(
            row.name,
            f"{row.megabytes:.1f}",
            *(judged_by.shown(value) for value in row.figures.values()),
            f"{row.sentences_per_second:,.0f}",
            f"{min(speeds):,.0f} - {max(speeds):,.0f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
