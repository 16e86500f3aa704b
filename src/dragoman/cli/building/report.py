"""The command `dragoman report`."""

import sys
from pathlib import Path
from typing import Any

import click

from dragoman import api

from ..shared.options import PATH, checkpoint_options, force_option, option_names, threads_option
from ..shared.terminal import notify, shown_progress


@click.command()
@click.argument("bundles", metavar="BUNDLE...", nargs=-1, required=True, type=PATH)
@click.option("-o", "--output", type=PATH, required=True, help="Page to write, .html.")
@click.option(
    "--checkpoint",
    metavar="CHECKPOINT",
    help="Checkpoint of the bundles, as for `dragoman build`: for licences, the training, "
    "attention on its held-out data, and the sensitivity to int8 and int4.",
)
@checkpoint_options
@click.option(
    "--sensitivity",
    "sensitivities",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="File that `dragoman sensitivity` wrote for a bundle, so that it is not measured again; "
    "repeatable.",
)
@click.option(
    "--inputs",
    type=PATH,
    help="File of texts, one per line, or directory of audio clips, to show attention and measure "
    "sensitivity on [the checkpoint's held-out data].",
)
@click.option(
    "--no-measurements",
    is_flag=True,
    help="Do not measure speed, load time, memory and sensitivity.",
)
@click.option(
    "--json", type=PATH, help="Also write all numbers to this JSON file; the page has them, too."
)
@threads_option
@force_option
@click.pass_context
def report(
    context: click.Context,
    /,
    bundles: tuple[Path, ...],
    output: Path,
    no_measurements: bool,
    force: bool,
    **given: Any,
) -> None:
    """Write a report on one or more BUNDLES, as one HTML page that needs no network.

    It shows licences and hashes, the training, parity with the trained model, the sensitivity to
    quantization, what the passes did, size, memory, and curves of latency and throughput. Parity
    is what `dragoman verify` recorded. For what is missing, the page names the command that adds
    it.

    \b
    dragoman report bundles/g2p-en -o report.html --checkpoint g2p-en
    dragoman report bundles/g2p-en bundles/g2p-en-int8 -o report.html --json report.json
    """
    with shown_progress() as progress, option_names(context.command):
        made = api.report(
            bundles,
            output,
            measurements=not no_measurements,
            overwrite=force,
            command=" ".join(["dragoman", *sys.argv[1:]]),
            progress=progress,
            **given,
        )
    for bundle in made.bundles:
        notify(f"{bundle.label}: {bundle.verdict.state}", err=False)
    notify(f"Wrote {output}", err=False)
