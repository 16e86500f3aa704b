"""Decoders alone compared with other tools: the same weights and prompts, interleaved in one run.

    python -m dragoman.benchmarks.language_model --output benchmarks/results

Every contender continues prompts by a fixed number of tokens, greedily; a call is the whole of it,
reading the prompts included. The weights are random but seeded, in the shape of the smallest GPT-2,
and never choose the end token. As in `..compare`, a figure is the median over the rounds.
"""

# Nothing that imports torch is imported at the top: the contenders' processes import this module,
# and most of them are measured without PyTorch.

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click
from rich.console import Console

from dragoman.errors import DragomanError

from ..circumstances import circumstances
from ..harness import HERE, Interpreter
from ..taking_part import before_option, only_option, openvino_option, selected
from ..text.measuring import Figures, measure
from ..text.report import Comparison, plot, show
from ..text.workload import Workload
from .contenders import contenders

NAME = "language-model"


@click.command()
@click.option(
    "--shape",
    type=click.Choice(["tiny", "gpt2"]),
    default="gpt2",
    show_default=True,
    help="Of the model.",
)
@click.option(
    "--batch-size",
    "batch_sizes",
    type=click.IntRange(min=1),
    multiple=True,
    default=(1, 8),
    show_default=True,
    help="Prompts continued as one batch; may be repeated.",
)
@click.option(
    "--prompt-length",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="Tokens of every prompt.",
)
@click.option(
    "--new-tokens",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Tokens generated for every prompt.",
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
@before_option
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Folder to write the figures to, as JSON and as a plot.",
)
def main(
    shape: str,
    batch_sizes: tuple[int, ...],
    prompt_length: int,
    new_tokens: int,
    threads: tuple[int, ...],
    rounds: int,
    only: tuple[str, ...],
    openvino_python: Path | None,
    before: Path | None,
    output: Path | None,
) -> None:
    """Compare Dragoman with other tools at continuing prompts with a model of random weights.

    What cannot be measured, such as a tool that is not installed, is reported with the reason.
    """
    from .checkpoint import LANGUAGE_MODELS, describe

    workload = Workload(
        batch_sizes=tuple(dict.fromkeys(batch_sizes)),
        source_length=prompt_length,
        new_tokens=new_tokens,
        tokens=(0, LANGUAGE_MODELS[shape].vocab_size - 1),  # without the end token (last)
        threads=tuple(dict.fromkeys(threads)),
        rounds=rounds,
    )
    load_average = os.getloadavg()[0]
    try:
        openvino = Interpreter.of_environment(openvino_python) if openvino_python else HERE
        earlier = Interpreter.of_tree(before) if before else None
        figures = _measure(shape, workload, only, openvino, earlier)
        where = circumstances(
            "dragoman.benchmarks.language_model",
            load_average,
            environments=[openvino] if openvino_python else [],
            trees={"dragoman, before": before} if before else {},
        )
    except DragomanError as error:
        raise click.ClickException(str(error)) from error
    comparison = Comparison(
        shape=describe(shape),
        source_length=prompt_length,
        new_tokens=new_tokens,
        threads=workload.threads,
        rounds=rounds,
        measurements=figures.measurements,
        footprints=figures.footprints,
        word_error={},
        failures=figures.failures,
        circumstances=where,
        costs=figures.costs,
    )
    show(comparison)
    if not comparison.measurements:
        raise click.ClickException("expected at least one contender that works, found none")
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        name = f"{NAME}-{shape}-{'-'.join(map(str, workload.threads))}-threads"
        (output / f"{name}.json").write_text(comparison.to_json(), encoding="utf-8")
        plot(comparison, output / f"{name}.png")


def _measure(
    shape: str,
    workload: Workload,
    only: tuple[str, ...],
    openvino: Interpreter,
    before: Interpreter | None,
) -> Figures:
    from .checkpoint import write_random_language_model

    everyone = contenders(openvino_in=openvino, before=before)
    names = [contender.name for contender in everyone]
    taking_part = selected(names, only)
    with (
        tempfile.TemporaryDirectory() as workspace,
        Console(stderr=True).status("") as status,
    ):
        checkpoint = Path(workspace) / "checkpoint"
        write_random_language_model(shape, checkpoint)
        return measure(
            everyone,
            taking_part,
            workload,
            checkpoint=checkpoint,
            directory=Path(workspace),
            progress=status.update,
        )


if __name__ == "__main__":
    main()
