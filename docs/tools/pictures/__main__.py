"""Redraws the pictures of the documentation.

    python -m docs.tools.pictures --output docs/pictures

Needs the extras export, cpu and train, and no network. The pictures of costs and figures
are drawn from the records in `benchmarks/results`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import click
from matplotlib.figure import Figure

from docs.tools.costs.report import CostRecord
from docs.tools.pictures.attention_and_costs import (
    RECORD,
    attention_of,
    draw_encoder,
    draw_heads,
    draw_mean,
    draw_step,
)
from docs.tools.pictures.diagram import draw_uses
from docs.tools.pictures.figures import (
    draw_latency,
    draw_quality,
    draw_serving,
    draw_throughput,
)
from docs.tools.pictures.formulas import (
    draw_activations,
    draw_learning_rate,
    draw_masks,
    draw_positions,
    draw_scaling,
)
from dragoman.benchmarks.compare.picture_style import write
from dragoman.runtime import Attention


@cache
def shipped() -> Attention:
    """Compute the attention of the shipped model."""
    return attention_of()


def of_record(draw: Callable[[CostRecord], Figure]) -> Figure:
    """Draw the record of costs."""
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
    "figures-quality.svg": draw_quality,
    "figures-latency.svg": draw_latency,
    "figures-throughput.svg": draw_throughput,
    "figures-serving.svg": draw_serving,
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
    """Redraw the pictures of the documentation."""
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
