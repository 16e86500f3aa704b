"""BLEU and chrF of a trained model of translation, for each precision and strategy.

    python -m dragoman.benchmarks.translation bible-en-es --output benchmarks/results
    python -m dragoman.benchmarks.translation checkpoints/multi30k-en-de --data dataset/data/task1

A bundle is built for each precision, quantized with the sources of the validation data or, where
they are not at hand, of the first test set. Outputs are scored by sacrebleu.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from dragoman.errors import DragomanError
from dragoman.export.locating import locate_checkpoint
from dragoman.reference_model.recipes import find_recipe, multi30k_en_de
from dragoman.reference_model.recipes.recipe import RECIPE_FILE

from ..circumstances import circumstances
from .measuring import measure
from .report import Qualities, show
from .sets import HeldOut, held_out_sets

CALIBRATED_ON = 200
"""Sources."""


@click.command()
@click.argument("checkpoint")
@click.option("--data", type=click.Path(path_type=Path), help="The folder of Multi30k.")
@click.option(
    "--precision",
    "precisions",
    type=click.Choice(["fp32", "int8", "int4"]),
    multiple=True,
    default=["fp32", "int8", "int4"],
    show_default=True,
)
@click.option("--beams", type=click.IntRange(min=1), multiple=True, default=[1, 5])
@click.option("--threads", type=click.IntRange(min=1))
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Where the record and the training's curve go.",
)
def main(
    checkpoint: str,
    data: Path | None,
    precisions: tuple[str, ...],
    beams: tuple[int, ...],
    threads: int | None,
    output: Path | None,
) -> None:
    """Translate what CHECKPOINT, trained by one of Dragoman's recipes, has never seen."""
    load_average = os.getloadavg()[0]
    try:
        directory = locate_checkpoint(checkpoint).directory
        training = _training(directory)
        recipe = find_recipe(str(training["recipe"]))
        tests = held_out_sets(recipe.name, directory, data)
        with tempfile.TemporaryDirectory() as workspace:
            figures = list(
                measure(
                    directory,
                    Path(workspace),
                    tests,
                    precisions=precisions,
                    beams=beams,
                    calibration=_calibration(recipe.name, tests, data),
                    threads=threads,
                )
            )
    except DragomanError as error:
        raise click.ClickException(str(error)) from error
    where = circumstances("dragoman.benchmarks.translation", load_average)
    qualities = Qualities(recipe.name, figures, training, where)
    show(qualities, Console())
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        path = output / f"translation-{recipe.name}.json"
        path.write_text(qualities.to_json(), encoding="utf-8")
        shutil.copyfile(directory / "curve.png", path.with_suffix(".png"))


def _training(directory: Path) -> dict[str, Any]:
    path = directory / RECIPE_FILE
    if not path.is_file():
        raise DragomanError(f"{directory}: expected a checkpoint of a recipe, found no {path.name}")
    history = (directory / "history.jsonl").read_text(encoding="utf-8").splitlines()
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record | {"history": [json.loads(line) for line in history]}


def _calibration(recipe: str, tests: list[HeldOut], data: Path | None) -> list[str]:
    if recipe == multi30k_en_de.RECIPE.name and data is not None:
        sources = [example.source for example in multi30k_en_de.read_set(data, "val")]
    else:
        sources = list(tests[0].sources)
    return sources[:: max(1, len(sources) // CALIBRATED_ON)][:CALIBRATED_ON]


if __name__ == "__main__":
    main()
