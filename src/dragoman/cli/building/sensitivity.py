"""The command `dragoman sensitivity`."""

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dragoman import api
from dragoman.errors import refuse_existing, refuse_unwritable_file
from dragoman.verification.sensitivity import Effect, Sensitivity

from ..shared.options import (
    PATH,
    bundle_argument,
    checkpoint_options,
    counted,
    force_option,
    threads_option,
)
from ..shared.terminal import notify, shown_progress

SHOWN = 12
"""The most products that are listed; the file has all."""


@click.command()
@bundle_argument
@click.argument("checkpoint")
@click.option(
    "-o",
    "--output",
    type=PATH,
    help="Also write the figures to this JSON file, which `dragoman report` reads.",
)
@checkpoint_options
@click.option(
    "--inputs",
    type=PATH,
    help="File of texts to predict on, one per line, or directory of audio clips [the held-out "
    "data].",
)
@counted("--limit", help="Predict on at most this many inputs [32; 4 for audio].")
@click.option(
    "--calibration",
    type=PATH,
    help="The --calibration that the bundle was built with [random inputs].",
)
@threads_option
@force_option
def sensitivity(
    bundle: Path, checkpoint: str, output: Path | None, force: bool, **given: Any
) -> None:
    """Measure which matrix products and layers lose accuracy in the precision of BUNDLE.

    One product or layer at a time is quantized, and the predictions are compared with those in
    fp32. Then the worst products are kept in fp32: `dragoman build --keep-fp32` takes their names.
    BUNDLE is in int8 or int4, for target cpu or neutral. CHECKPOINT is what it was built from, as
    for `dragoman build`.

    \b
    dragoman sensitivity bundles/g2p-en-int8 g2p-en -o sensitivity.json
    """
    if output is not None:
        refuse_existing(output, force)
        refuse_unwritable_file(output)
    with shown_progress() as progress:
        found = api.sensitivity(bundle, checkpoint, progress=progress, **given)
    if output is not None:
        found.write(output)
    _print(found)
    if found.differing:
        notify(
            f"Warning: {len(found.differing)} of {len(found.products)} products are rounded "
            "otherwise than in the bundle: give the --calibration and the checkpoint that it was "
            "built with"
        )
    best = found.best
    if best is not None:
        names = " ".join(f"--keep-fp32 {p.name}" for p in found.worst[: best.count])
        notify(
            f"Next: dragoman build {checkpoint} -o ... --precision {found.precision} {names}",
            err=False,
        )
    if output is not None:
        notify(f"Wrote {output}", err=False)


def _print(found: Sensitivity) -> None:
    unit = ", nats" if found.measure == "divergence" else ""
    console = Console()
    console.print(
        escape(
            f"{found.bundle}, {found.target} {found.precision}, on {found.inputs}: "
            f"{found.measure} of {found.positions} predictions from fp32"
        )
    )
    products = Table(title=f"the worst products, {found.precision} alone", title_justify="left")
    layers = Table(title=f"layers, {found.precision} alone", title_justify="left")
    keeping = Table(title="the worst kept in fp32", title_justify="left")
    for table, headings in (
        (products, ("product", "error", f"mean{unit}", f"largest{unit}", "MB more in fp32")),
        (layers, ("layer", "products", f"mean{unit}", f"largest{unit}")),
        (keeping, ("kept", f"mean{unit}", f"largest{unit}", "same choice", "MB of weights")),
    ):
        for index, heading in enumerate(headings):
            table.add_column(heading, justify="left" if index == 0 else "right")
    for product in found.worst[:SHOWN]:
        assert product.alone is not None
        error = "" if product.error is None else f"{product.error:.2%}"
        size = f"{product.extra_bytes / 1e6:.2f}"
        name = escape(product.name) + (" (kept)" if product.kept else "")
        products.add_row(name, error, *_figures(product.alone), size)
    for layer in sorted(found.layers, key=lambda layer: layer.alone.mean, reverse=True):
        layers.add_row(escape(layer.name), str(len(layer.products)), *_figures(layer.alone))
    named = {0: "none", found.keeping[-1].count: "all"}
    for step in found.keeping:
        same = "" if step.effect.same_choice is None else f"{step.effect.same_choice:.2%}"
        size = f"{step.weight_bytes / 1e6:.2f}"
        count = named.get(step.count, str(step.count))
        keeping.add_row(count, *_figures(step.effect), same, size)
    console.print(products, layers, keeping)


def _figures(effect: Effect) -> tuple[str, str]:
    return f"{effect.mean:.2g}", f"{effect.largest:.2g}"
