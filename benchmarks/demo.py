"""`make demo`: the shipped model's output for words it has never seen, next to the dictionary's."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dragoman.reference_model.recipes import find_recipe, read_examples
from dragoman.runtime import load

SHOWN = 15


def main(bundle: str, held_out: str) -> None:
    """Decode and score all held-out words, and show some of them."""
    model = load(bundle)
    examples = read_examples(Path(held_out))
    results = model.generate([example.source for example in examples])
    texts = [result.text or "" for result in results]
    score = find_recipe(model.manifest.name).score
    assert score is not None
    figures = score(texts, examples)

    table = Table(title="words never seen in training", title_justify="left")
    for heading in ("word", "dragoman run", "CMUdict", ""):
        table.add_column(heading)
    for index in sorted(random.Random(7).sample(range(len(examples)), SHOWN)):
        example, text = examples[index], texts[index]
        mark = "[green]✓[/green]" if text in example.references else "[red]✗[/red]"
        table.add_row(example.source, text, " | ".join(example.references), mark)
    console = Console()
    console.print(table)
    summary = ", ".join(f"{name} {value:.2%}" for name, value in figures.items())
    console.print(f"all {len(examples):,} held-out words: {summary}")


if __name__ == "__main__":
    main(*sys.argv[1:])
