"""`dragoman report`"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from .option_names import option_names
from .options import force_option, revision_option, threads_option


@click.command(short_help="Write one page on bundles: to sign off, or to debug.")
@click.argument(
    "bundles", metavar="BUNDLE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="The page, .html.",
)
@click.option(
    "--checkpoint",
    metavar="CHECKPOINT",
    help="What the bundles were built from, as for `dragoman build`: to read its licences, to "
    "show attention on its held-out data, and to measure where int8 and int4 hurt.",
)
@revision_option
@click.option(
    "--sensitivity",
    "sensitivities",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="What `dragoman sensitivity` wrote of a bundle, in place of measuring it; may be "
    "repeated.",
)
@click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    help="File of texts, one per line, or directory of audio clips, to show attention and measure "
    "sensitivity on [the checkpoint's held-out data].",
)
@click.option(
    "--no-measurements",
    is_flag=True,
    help="Measure nothing: neither speed, load time and memory, nor sensitivity.",
)
@click.option(
    "--json",
    type=click.Path(path_type=Path),
    help="Also write all numbers to this JSON file; they are in the page, too.",
)
@threads_option
@force_option
@click.pass_context
def report(
    context: click.Context,
    /,
    bundles: tuple[Path, ...],
    output: Path,
    checkpoint: str | None,
    revision: str | None,
    sensitivities: tuple[Path, ...],
    inputs: Path | None,
    no_measurements: bool,
    json: Path | None,
    threads: int | None,
    force: bool,
) -> None:
    """Write one page on one or more BUNDLES, which needs no network: what they are, licences and
    hashes, parity with the trained model, where their precision hurts, what the passes did, size,
    memory, and curves of latency and throughput beside each other.

    Parity is what the manifests record (`dragoman verify`). What is missing is named on the page
    with the command that adds it.

    \b
    dragoman report bundles/g2p-en -o report.html --checkpoint g2p-en
    dragoman report bundles/g2p-en bundles/g2p-en-int8 -o report.html --json report.json
    """
    from dragoman import api

    from .progress import shown_progress

    with shown_progress() as progress, option_names(context.command):
        made = api.report(
            bundles,
            output,
            checkpoint=checkpoint,
            revision=revision,
            sensitivities=sensitivities,
            inputs=inputs,
            threads=threads,
            measurements=not no_measurements,
            json=json,
            overwrite=force,
            command=" ".join(["dragoman", *sys.argv[1:]]),
            progress=progress,
        )
    for bundle in made.bundles:
        click.echo(f"{bundle.label}: {bundle.verdict.state}")
    click.echo(f"Wrote {output}")
