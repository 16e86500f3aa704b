"""Vectors of sentences compared with other tools: the same weights and texts, interleaved in one
run.

    python -m dragoman.benchmarks.encoding --output benchmarks/results

Every contender encodes the same texts, all of one length in tokens; a call is the whole of it, from
texts to vectors. The model is MiniLM-L6, trained, downloaded once. A figure is the median over
rounds, in which all contenders take a turn with every number of threads.
"""

# Nothing that imports torch is imported at the top: the contenders' processes import this module,
# and most of them are measured without PyTorch.

from __future__ import annotations

import os
import tempfile
from itertools import islice
from pathlib import Path

import click
from rich.console import Console

from dragoman.errors import DragomanError

from ..circumstances import circumstances
from ..harness import HERE, Interpreter
from ..real_models import minilm
from ..taking_part import only_option, openvino_option, selected
from .contenders import contenders
from .measuring import Figures, measure
from .report import EncodingComparison, show
from .workload import OTHER_PROSE, PROSE, calls, load_tokenizer, pieces

CALIBRATION_TEXTS, CALIBRATION_LENGTH = 64, 48


@click.command()
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    help="Directory of sentence-transformers with mean pooling [default: MiniLM-L6, downloaded].",
)
@click.option("--name", help="The model's name in the record [default: the directory's].")
@click.option(
    "--length",
    "lengths",
    type=click.IntRange(min=3),
    multiple=True,
    default=(16, 128),
    show_default=True,
    help="Tokens of every text, special tokens included; may be repeated.",
)
@click.option(
    "--batch-size",
    "batch_sizes",
    type=click.IntRange(min=1),
    multiple=True,
    default=(1, 8, 32),
    show_default=True,
    help="Texts encoded by one call; may be repeated.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    multiple=True,
    default=(1, 2),
    show_default=True,
    help="Threads of every contender; may be repeated, and each takes part with each number.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=7,
    show_default=True,
    help="Counted rounds; a warm-up comes before them.",
)
@only_option
@openvino_option
@click.option(
    "--output", type=click.Path(path_type=Path), help="Folder to write the figures to, as JSON."
)
def main(
    model: Path | None,
    name: str | None,
    lengths: tuple[int, ...],
    batch_sizes: tuple[int, ...],
    threads: tuple[int, ...],
    rounds: int,
    only: tuple[str, ...],
    openvino_python: Path | None,
    output: Path | None,
) -> None:
    """Compare Dragoman with other tools at vectors of sentences.

    What cannot be measured, such as a tool that is not installed, is reported with the reason.
    """
    load_average = os.getloadavg()[0]
    try:
        checkpoint = model or minilm()
        openvino = Interpreter.of_environment(openvino_python) if openvino_python else HERE
        figures = _measure(
            checkpoint,
            list(dict.fromkeys(lengths)),
            list(dict.fromkeys(batch_sizes)),
            threads=list(dict.fromkeys(threads)),
            rounds=rounds,
            only=only,
            openvino=openvino,
        )
        where = circumstances(
            "dragoman.benchmarks.encoding",
            load_average,
            environments=[openvino] if openvino_python else [],
        )
    except DragomanError as error:
        raise click.ClickException(str(error)) from error
    comparison = EncodingComparison(
        model=name or (model.name if model else "MiniLM-L6"),
        threads=threads,
        rounds=rounds,
        measurements=figures.measurements,
        footprints=figures.footprints,
        failures=figures.failures,
        circumstances=where,
    )
    show(comparison)
    if not comparison.measurements:
        raise click.ClickException("expected at least one contender that works, found none")
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        file = f"encoding-{comparison.model}-{'-'.join(map(str, threads))}-threads.json"
        (output / file.lower()).write_text(comparison.to_json(), encoding="utf-8")


def _measure(
    checkpoint: Path,
    lengths: list[int],
    batch_sizes: list[int],
    *,
    threads: list[int],
    rounds: int,
    only: tuple[str, ...],
    openvino: Interpreter,
) -> Figures:
    tokenizer = load_tokenizer(checkpoint)
    prose = PROSE.read_text(encoding="utf-8")
    other = pieces(OTHER_PROSE.read_text(encoding="utf-8"), tokenizer, CALIBRATION_LENGTH)
    everyone = contenders([*islice(other, CALIBRATION_TEXTS)], openvino_in=openvino)
    names = [contender.name for contender in everyone if contender.timed]
    taking_part = selected(names, only)
    items = [calls(prose, tokenizer, length, size) for length in lengths for size in batch_sizes]
    with (
        tempfile.TemporaryDirectory() as workspace,
        Console(stderr=True).status("") as status,
    ):
        return measure(
            everyone,
            taking_part,
            items,
            checkpoint=checkpoint,
            directory=Path(workspace),
            threads=threads,
            rounds=rounds,
            progress=status.update,
        )


if __name__ == "__main__":
    main()
