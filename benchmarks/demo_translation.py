"""`make demo-translation`: what the shipped model makes of verses it has never seen."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dragoman.reference_model.recipes import find_recipe, read_examples
from dragoman.runtime import load
from dragoman.verification.inputs.items import spread

SHOWN = 6
SCORED = 300
"""Verses, spread evenly over all."""


def main(bundle: str, held_out: str) -> None:
    """Translate and score held-out verses, and show some of them."""
    model = load(bundle)
    everything = read_examples(Path(held_out))
    examples = spread(everything, SCORED)
    results = model.generate([example.source for example in examples], num_beams=4)
    texts = [result.text or "" for result in results]
    recipe = find_recipe(model.manifest.name)
    assert recipe.score is not None
    figures = recipe.score(texts, examples)

    table = Table(title="verses never seen in training", title_justify="left", show_lines=True)
    for heading in ("World English Bible", "dragoman run --beams 4", "Reina-Valera 1909"):
        table.add_column(heading, ratio=1)
    for index in sorted(random.Random(7).sample(range(len(examples)), SHOWN)):
        example = examples[index]
        table.add_row(example.source, texts[index], example.references[0])
    console = Console()
    console.print(table)
    summary = ", ".join(f"{name} {recipe.shown(value)}" for name, value in figures.items())
    console.print(f"{len(examples)} of {len(everything):,} held-out verses, 4 beams: {summary}")


if __name__ == "__main__":
    main(*sys.argv[1:])
