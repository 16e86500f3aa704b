"""`make demo`: shows outputs of a shipped model on held-out words or verses.

    python -m docs.tools.demo bundles/g2p-en held_out.tsv

decodes the examples of the file, scores them and shows some. A student is shown beside its teacher.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.table import Table

from dragoman.reference_model.recipes import Example, Recipe, find_recipe, read_examples
from dragoman.runtime import load, read_bundle
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
@click.option("--student", help="The bundle of a student, which decodes greedily.")
def main(bundle: str, held_out: Path, beams: int, limit: int | None, student: str | None) -> None:
    """Decode and score examples of HELD_OUT by BUNDLE, and show some of them."""
    everything = read_examples(held_out)
    examples = spread(everything, limit) if limit else everything
    name = read_bundle(Path(bundle)).manifest.name
    recipe, shown = find_recipe(name), SHOWN[name]
    decoded = [Decoded.of(bundle, beams, examples, recipe)]
    if student is not None:
        decoded.append(Decoded.of(student, 1, examples, recipe))

    title = f"{shown.unit} never seen in training"
    table = Table(title=title, title_justify="left", show_lines=not shown.marked)
    headings = ["dragoman run" + (f" --beams {beams}" if beams > 1 else ""), "the student"]
    for heading in (shown.headings[0], *headings[: len(decoded)], shown.headings[1]):
        table.add_column(heading, ratio=None if shown.marked else 1)
    if shown.marked:
        table.add_column("")
    for index in sorted(random.Random(7).sample(range(len(examples)), shown.examples)):
        example, texts = examples[index], [own.texts[index] for own in decoded]
        row = [example.source, *texts, " | ".join(example.references)]
        if shown.marked:
            row.append("[green]✓[/green]" if texts[0] in example.references else "[red]✗[/red]")
        table.add_row(*row)
    console = Console()
    console.print(table)
    console.print(f"{len(examples):,} of {len(everything):,} held-out {shown.unit}")
    for own in decoded:
        console.print(f"{own.name}: {own.figures}, {len(examples) / own.seconds:,.0f} a second")


class Decoded(NamedTuple):
    """What a bundle makes of examples."""

    name: str
    texts: Sequence[str]
    figures: str
    seconds: float

    @classmethod
    def of(cls, bundle: str, beams: int, examples: Sequence[Example], recipe: Recipe) -> Decoded:
        """Decode and score examples by a bundle."""
        model = load(bundle)
        sources = [example.source for example in examples]
        model.generate(sources[:1], num_beams=beams)
        began = time.perf_counter()
        texts = [result.text or "" for result in model.generate(sources, num_beams=beams)]
        seconds = time.perf_counter() - began
        assert recipe.score is not None
        figures = recipe.score(texts, examples)
        shown = ", ".join(f"{name} {recipe.shown(value)}" for name, value in figures.items())
        strategy = f", {beams} beams" if beams > 1 else ""
        return cls(f"{model.manifest.name}{strategy}", texts, shown, seconds)


if __name__ == "__main__":
    main()
