"""Collects what `make gpu` needs on a GPU machine without a network.

    python -m dragoman.benchmarks.gpu.kit --output gpu-kit

Run it in the repository, on a machine with a network. `docs/gpu-without-a-network.md` tells the
rest.
"""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from dragoman.errors import DragomanError

from .contents import PART_BYTES
from .making import make_kit


@click.command()
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="A new folder for the parts, the list of their hashes, and the script.",
)
@click.option(
    "--python-version",
    "python",
    default="3.12",
    show_default=True,
    help="Of the Python on the GPU machine.",
)
@click.option(
    "--part-bytes",
    type=click.IntRange(min=1),
    default=PART_BYTES,
    show_default=True,
    help="The largest part.",
)
def main(output: Path, python: str, part_bytes: int) -> None:
    """Collect what `make gpu` needs on a machine with Python, a driver for CUDA 13 and PyTorch."""
    console = Console(stderr=True)
    try:
        with console.status("") as status:
            kit = make_kit(
                Path(), output, python=python, part_bytes=part_bytes, progress=status.update
            )
    except DragomanError as error:
        raise click.ClickException(str(error)) from error
    for pack in kit["packs"]:
        optional = ", optional" if pack["optional"] else ""
        click.echo(f"{pack['name']}{optional}: {pack['size'] / 1e6:.1f} MB, {pack['purpose']}")
        click.echo(f"  {', '.join(f'{name} {version}' for name, version in pack['holds'].items())}")
        for part in pack["parts"]:
            click.echo(f"  {part['size'] / 1e6:5.1f} MB  {part['file']}")
    accepted = ", ".join(f"{name}{versions}" for name, versions in kit["needs"].items())
    click.echo(f"The machine must have Python {python} and: {accepted}")
    click.echo(f"Then, there: python3 install.py --to FOLDER; make gpu GPU_KIT=FOLDER ({output})")


if __name__ == "__main__":
    main()
