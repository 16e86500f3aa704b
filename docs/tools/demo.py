"""`make demo`: shows outputs of a shipped model on held-out words or verses.

    python -m docs.tools.demo bundles/g2p-en held_out.tsv

decodes the examples of the file, scores them and shows some.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.table import Table

from dragoman.reference_model.recipes import find_recipe, read_examples
from dragoman.runtime import load
from dragoman.verification.inputs.items import spread


class Shown(NamedTuple):
    """The presentation of a recipe's examples.

    Attributes:
        unit: unit of the examples
        examples: number of examples to show
        headings: headings of sources and references
        marked: whether outputs are marked as right or wrong
    """

    unit: str
    examples: int
    headings: tuple[str, str]
    marked: bool = False


SHOWN = {
    "g2p-en": Shown("words", 15, ("word", "CMUdict"), marked=True),
    "bible-en-es": Shown("verses", 6, ("World English Bible", "Reina-Valera 1909")),
}


@click.command()
@click.argument("bundle")
@click.argument("held_out", type=click.Path(path_type=Path))
@click.option("--beams", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--limit", type=click.IntRange(min=1), help="Examples, spread evenly [default: all].")
def main(bundle: str, held_out: Path, beams: int, limit: int | None) -> None:
    """Decode and score examples of HELD_OUT by BUNDLE, and show some of them."""
    model = load(bundle)
    everything = read_examples(held_out)
    examples = spread(everything, limit) if limit else everything
    results = model.generate([example.source for example in examples], num_beams=beams)
    texts = [result.text or "" for result in results]
    recipe, shown = find_recipe(model.manifest.name), SHOWN[model.manifest.name]
    assert recipe.score is not None
    figures = recipe.score(texts, examples)

    title = f"{shown.unit} never seen in training"
    table = Table(title=title, title_justify="left", show_lines=not shown.marked)
    command = "dragoman run" + (f" --beams {beams}" if beams > 1 else "")
    for heading in (shown.headings[0], command, shown.headings[1]):
        table.add_column(heading, ratio=None if shown.marked else 1)
    if shown.marked:
        table.add_column("")
    for index in sorted(random.Random(7).sample(range(len(examples)), shown.examples)):
        example, text = examples[index], texts[index]
        row = [example.source, text, " | ".join(example.references)]
        if shown.marked:
            row.append("[green]✓[/green]" if text in example.references else "[red]✗[/red]")
        table.add_row(*row)
    console = Console()
    console.print(table)
    summary = ", ".join(f"{name} {recipe.shown(value)}" for name, value in figures.items())
    strategy = f", {beams} beams" if beams > 1 else ""
    console.print(
        f"{len(examples):,} of {len(everything):,} held-out {shown.unit}{strategy}: {summary}"
    )


if __name__ == "__main__":
    main()
