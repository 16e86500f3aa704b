"""`dragoman train`"""

from __future__ import annotations

from pathlib import Path

import click


@click.command(short_help="Train a recipe's model from scratch.")
@click.argument("recipe")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The checkpoint's directory [checkpoints/RECIPE].",
)
@click.option("--epochs", type=click.IntRange(min=1), help="Epochs to train for [the recipe's].")
@click.option("--threads", type=click.IntRange(min=1), help="Processor threads [all cores].")
def train(recipe: str, output: Path | None, epochs: int | None, threads: int | None) -> None:
    """Train RECIPE's model from scratch and score it on held-out data.

    The same command resumes an interrupted training, whose state is kept in OUTPUT/training.
    Recipes: g2p-en (English words to phonemes; about two hours on two cores), verses-en (a language
    model that continues English verses; half an hour on one core).

    \b
    dragoman train g2p-en -o checkpoints/g2p-en
    """
    import dataclasses

    from dragoman.errors import DragomanError, refuse_unwritable
    from dragoman.reference_model.recipes import find_recipe

    chosen = find_recipe(recipe)
    directory = output or Path("checkpoints") / recipe
    if directory.exists() and not directory.is_dir():
        raise DragomanError(f"{directory}: expected a directory to train in, found a file")
    refuse_unwritable(directory)
    import torch

    from dragoman.reference_model.recipes import run_recipe

    if epochs is not None:
        chosen = dataclasses.replace(
            chosen, options=dataclasses.replace(chosen.options, epochs=epochs)
        )
    if threads is not None:
        torch.set_num_threads(threads)
    figures = run_recipe(chosen, directory, directory / "training")
    for name, value in figures.items():
        click.echo(f"held-out {name}: {chosen.shown(value)}")
    click.echo(f"\nNext: dragoman build {directory} -o bundles/{recipe}")
