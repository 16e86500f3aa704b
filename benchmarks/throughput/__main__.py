"""Throughput at a queue of unlike sentences, each tool arranged as suits it best.

    python -m dragoman.benchmarks.throughput --output benchmarks/results

Every tool first tries all arrangements of the processor's cores into workers and threads, with
several sizes of batches; then the tools take turns, each in the one in which it was fastest.
Sentences are dealt to the workers beforehand, of all lengths to each. The weights are random but
seeded, and choose the end token at one step in 32: outputs have unlike lengths, which are nearly
the same for all tools. Dragoman's int8 and int4 are calibrated on other sentences of the same kind.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click
from rich.console import Console

from dragoman.errors import DragomanError

from ..circumstances import circumstances
from ..harness import HERE, Interpreter
from ..models.options import shape_option, vocab_size_option
from ..models.shapes import SHAPES, describe
from ..taking_part import before_option, openvino_option, selected
from .contenders import tools
from .measuring import measure
from .report import Record, show
from .work import CALIBRATED_ON, LONGEST_OUTPUT, SOURCE_LENGTHS, arrangements, draw_sources

MEAN_OUTPUT = 32


@click.command()
@shape_option
@vocab_size_option
@click.option(
    "--sentences",
    "count",
    type=click.IntRange(min=1),
    default=500,
    show_default=True,
    help="In the queue.",
)
@click.option(
    "--cores",
    type=click.IntRange(min=1),
    help="To arrange [default: all].",
)
@click.option(
    "--batch-size",
    "batch_sizes",
    type=click.IntRange(min=1),
    multiple=True,
    default=(16, 32, 64),
    show_default=True,
    help="The most sentences that a worker decodes together; every tool tries each.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Counted rounds; a warm-up comes before them.",
)
@click.option(
    "--only",
    multiple=True,
    help="Only tools whose name contains this text (ignoring case); may be repeated.",
)
@openvino_option
@before_option
@click.option(
    "--output", type=click.Path(path_type=Path), help="Folder to write the figures to, as JSON."
)
def main(
    shape: str,
    vocab_size: int | None,
    count: int,
    cores: int | None,
    batch_sizes: tuple[int, ...],
    rounds: int,
    only: tuple[str, ...],
    openvino_python: Path | None,
    before: Path | None,
    output: Path | None,
) -> None:
    """Compare how many tokens a second tools give that have a queue to work off."""
    from .checkpoint import write_ending_text_model

    vocab_size = vocab_size or SHAPES[shape].vocab_size
    load_average = os.getloadavg()[0]
    console = Console(stderr=True)
    try:
        openvino = Interpreter.of_environment(openvino_python) if openvino_python else HERE
        earlier = Interpreter.of_tree(before) if before else None
        tokens = (1, vocab_size - 1)  # without end token and padding
        known = tools(draw_sources(CALIBRATED_ON, tokens, seed=99), openvino, earlier)
        names = selected([tool.name for tool in known], only, kind="tool")
        chosen = [tool for tool in known if tool.name in names]
        with tempfile.TemporaryDirectory() as workspace, console.status("") as status:
            checkpoint = Path(workspace) / "checkpoint"
            write_ending_text_model(
                shape, checkpoint, vocab_size=vocab_size, mean_length=MEAN_OUTPUT
            )
            throughputs, failures = measure(
                chosen,
                draw_sources(count, tokens),
                arrangements(cores or os.cpu_count() or 1, tuple(dict.fromkeys(batch_sizes))),
                rounds=rounds,
                checkpoint=checkpoint,
                directory=Path(workspace),
                progress=status.update,
            )
    except DragomanError as error:
        raise click.ClickException(str(error)) from error
    record = Record(
        shape=describe(shape, vocab_size),
        sentences=count,
        source_lengths=SOURCE_LENGTHS,
        longest_output=LONGEST_OUTPUT,
        rounds=rounds,
        tools=throughputs,
        failures=failures,
        circumstances=circumstances(
            "dragoman.benchmarks.throughput",
            load_average,
            environments=[openvino] if openvino_python else [],
            trees={"dragoman, before": before} if before else {},
        ),
    )
    show(record)
    if not throughputs:
        raise click.ClickException("expected at least one tool that works, found none")
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        file = output / f"throughput-{shape}-{cores or os.cpu_count()}-cores.json"
        file.write_text(record.to_json(), encoding="utf-8")


if __name__ == "__main__":
    main()
