"""How latency and tokens a second grow with the batch and with the length of the source.

    python -m dragoman.benchmarks.growth --output benchmarks/results

The batch grows with sources of 32 tokens; sources grow longer in batches of one size. Every
contender decodes the same number of new tokens greedily; the encoder is included. In each round all
contenders take a turn. The weights are random but seeded, in the shape of published models.
Dragoman's int8 and int4 are calibrated on other sources of these lengths.
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
from ..pictures.style import write
from ..taking_part import only_option, openvino_option, selected
from .contenders import growth_contenders
from .measuring import measure
from .picture import draw
from .report import Record, show
from .workload import Workload

SOURCE_LENGTH = 32
"""As the batch grows."""
TURN_SECONDS = 0.5
"""A batch is decoded again until that has taken so long."""


@click.command()
@shape_option
@vocab_size_option
@click.option(
    "--batch-size",
    "batch_sizes",
    type=click.IntRange(min=1),
    multiple=True,
    default=(1, 2, 4, 8, 16, 32, 64),
    show_default=True,
    help=f"Sources of {SOURCE_LENGTH} tokens decoded as one batch; may be repeated.",
)
@click.option(
    "--source-length",
    "source_lengths",
    type=click.IntRange(min=1),
    multiple=True,
    default=(8, 16, 32, 64, 128, 256, 512),
    show_default=True,
    help="Tokens of every source in batches of --source-batch; may be repeated.",
)
@click.option(
    "--source-batch",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Sources decoded as one batch, as they grow longer.",
)
@click.option(
    "--new-tokens",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Tokens generated for every source.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Of every contender.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Counted rounds; a warm-up comes before them.",
)
@only_option
@openvino_option
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Folder to write the figures to, as JSON and as a picture.",
)
def main(
    shape: str,
    vocab_size: int | None,
    batch_sizes: tuple[int, ...],
    source_lengths: tuple[int, ...],
    source_batch: int,
    new_tokens: int,
    threads: int,
    rounds: int,
    only: tuple[str, ...],
    openvino_python: Path | None,
    output: Path | None,
) -> None:
    """Measure how latency and tokens a second grow with the batch and the length of the source.

    What cannot be measured, such as a tool that is not installed, is reported with the reason.
    """
    from ..models.random_checkpoint import write_random_text_model

    _check_lengths(shape, source_lengths, new_tokens)
    vocab_size = vocab_size or SHAPES[shape].vocab_size
    workload = Workload(
        batch_sizes=tuple(sorted(set(batch_sizes))),
        source_length=SOURCE_LENGTH,
        source_lengths=tuple(sorted(set(source_lengths))),
        source_batch=source_batch,
        new_tokens=new_tokens,
        tokens=(1, vocab_size - 1),  # without the end token (first) and padding (last)
    )
    load_average = os.getloadavg()[0]
    console = Console(stderr=True)
    try:
        openvino = Interpreter.of_environment(openvino_python) if openvino_python else HERE
        known = growth_contenders(workload.calibration(), openvino)
        names = selected([contender.name for contender in known], only)
        with tempfile.TemporaryDirectory() as workspace, console.status("") as status:
            checkpoint = Path(workspace) / "checkpoint"
            write_random_text_model(shape, checkpoint, vocab_size=vocab_size)
            growth = measure(
                [contender for contender in known if contender.name in names],
                workload,
                threads=threads,
                rounds=rounds,
                turn_seconds=TURN_SECONDS,
                checkpoint=checkpoint,
                directory=Path(workspace),
                progress=status.update,
            )
        where = circumstances(
            "dragoman.benchmarks.growth",
            load_average,
            environments=[openvino] if openvino_python else [],
        )
    except DragomanError as error:
        raise click.ClickException(str(error)) from error
    record = Record(
        shape=describe(shape, vocab_size),
        new_tokens=new_tokens,
        threads=threads,
        rounds=rounds,
        by_batch=growth.by_batch,
        by_source=growth.by_source,
        failures=growth.failures,
        circumstances=where,
    )
    show(record)
    if not growth.by_batch:
        raise click.ClickException("expected at least one contender that works, found none")
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        name = f"growth-{shape}-{threads}-threads"
        (output / f"{name}.json").write_text(record.to_json(), encoding="utf-8")
        write(draw(record), output / f"{name}.svg")


def _check_lengths(shape: str, source_lengths: tuple[int, ...], new_tokens: int) -> None:
    positions = SHAPES[shape].positions
    if max(*source_lengths, new_tokens + 1) > positions:
        raise click.ClickException(
            f"expected sources of at most {positions} tokens and at most {positions - 1} new ones, "
            f"which {shape} has positions for, found {max(source_lengths)} and {new_tokens}"
        )


if __name__ == "__main__":
    main()
