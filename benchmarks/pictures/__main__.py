"""Makes the pictures of the documentation again.

    python -m dragoman.benchmarks.pictures --output docs/pictures

Needs the extras export, cpu and train, and no network. Those of costs are drawn from the record in
`benchmarks/results`, which `python -m dragoman.benchmarks.costs` writes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import click
from matplotlib.figure import Figure

from dragoman.runtime import Attention

from ..costs.report import CostRecord
from .attention import attention_of, draw_heads, draw_mean
from .costs import RECORD, draw_encoder, draw_step
from .diagram import draw_uses
from .formulas import (
    draw_activations,
    draw_learning_rate,
    draw_masks,
    draw_positions,
    draw_scaling,
)
from .style import write


@cache
def shipped() -> Attention:
    return attention_of()


def of_record(draw: Callable[[CostRecord], Figure]) -> Figure:
    return draw(CostRecord.read(RECORD))


PICTURES: dict[str, Callable[[], Figure]] = {
    "uses.svg": draw_uses,
    "positions.svg": draw_positions,
    "scaling.svg": draw_scaling,
    "masks.svg": draw_masks,
    "activations.svg": draw_activations,
    "learning-rate.svg": draw_learning_rate,
    "attention-heads.png": lambda: draw_heads(shipped()),
    "costs-encoder.svg": lambda: of_record(draw_encoder),
    "costs-step.svg": lambda: of_record(draw_step),
}
AS_THE_COMMAND = "attention-transformer.png"
"""What `dragoman attention bundles/g2p-en transformer -o ...` draws."""


@click.command()
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("docs/pictures"),
    show_default=True,
    help="Folder for the pictures.",
)
@click.option(
    "--only",
    type=click.Choice([*PICTURES, AS_THE_COMMAND]),
    multiple=True,
    help="May be repeated [all].",
)
def main(output: Path, only: tuple[str, ...]) -> None:
    """Make the pictures of the documentation again."""
    output.mkdir(parents=True, exist_ok=True)
    for name in only or (*PICTURES, AS_THE_COMMAND):
        path = output / name
        if name == AS_THE_COMMAND:
            draw_mean(shipped(), path)
        else:
            write(PICTURES[name](), path)
        click.echo(f"{path}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
