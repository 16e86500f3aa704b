"""The command `dragoman run-file`."""

import os
from pathlib import Path
from typing import Any

import click

from .shared.decoding_options import (
    check_prefix_file,
    decoding_options,
    for_bundle,
    prefix_file_option,
)
from .shared.options import (
    PATH,
    POSITIVE,
    SectionedCommand,
    backend_option,
    bundle_argument,
    device_option,
    gathered,
    in_section,
    option_names,
)
from .shared.terminal import notify, shown_progress

writing, workers_option = in_section("Output"), in_section("Options")


@click.command("run-file", cls=SectionedCommand, short_help="Decode a large file on Ray workers.")
@bundle_argument
@click.argument("source", type=PATH)
@writing(
    "-o",
    "--output",
    metavar="FILE",
    required=True,
    type=PATH,
    help="File to write when all lines are decoded.",
)
@writing("--force", is_flag=True, help="Replace the file if it exists.")
@decoding_options
@prefix_file_option
@writing("--json", "as_json", is_flag=True, help="Write a JSON object for each line.")
@workers_option(
    "--address", metavar="HOST:PORT", help="Connect to this Ray cluster [start one here]."
)
@gathered(
    "running",
    workers_option(
        "--workers", metavar="N", type=POSITIVE, default=2, help="Worker processes [2]."
    ),
    workers_option(
        "--threads", metavar="N", type=POSITIVE, default=1, help="Threads of each worker [1]."
    ),
    workers_option(
        "--gpus",
        metavar="X",
        type=click.FloatRange(min=0),
        default=0.0,
        help="GPUs of each worker [0].",
    ),
    workers_option(
        "--block-lines",
        metavar="N",
        type=POSITIVE,
        default=1024,
        help="Lines that a worker gets at once [1024].",
    ),
    backend_option,
    device_option,
)
@click.pass_context
def run_file(
    context: click.Context,
    /,
    bundle: Path,
    source: Path,
    output: Path,
    force: bool,
    prefix_file: Path | None,
    as_json: bool,
    address: str | None,
    greedy: bool,
    running: dict[str, Any],
    **asked: Any,
) -> int:
    """Decode the lines of SOURCE on workers of Ray; the same command goes on after an interruption.

    \b
    dragoman run-file bundles/en-de corpus.en -o corpus.de --workers 16 --address 10.0.0.1:6379
    """
    # Ray reads these when imported: no usage statistics, and a local cluster listens only on
    # 127.0.0.1, the default on systems other than Linux.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    from dragoman.runtime import GenerationOptions, read_bundle
    from dragoman.runtime.serving.ray import run_file as run
    from dragoman.runtime.serving.ray.files import connected

    if asked["alternatives"] and not as_json:
        raise click.UsageError("--alternatives: expected with --json, which has a place for them")
    check_prefix_file(prefix_file, asked)
    if prefix_file is not None and not prefix_file.is_file():
        raise click.UsageError(
            "--prefix-file: expected a regular file, which can be read twice, found a pipe or a "
            f"device: {prefix_file}"
        )
    with option_names(context.command):
        options = for_bundle(
            GenerationOptions(**asked), read_bundle(bundle).manifest, greedy=greedy
        )
        slots = running["workers"] * running["threads"]
        with connected(address, slots), shown_progress() as progress:
            joined = run(
                bundle,
                source,
                output,
                options,
                prefixes=prefix_file,
                form="json" if as_json else "text",
                overwrite=force,
                progress=progress,
                **running,
            )
    for number, reason in sorted(joined.rejected.items()):
        notify(f"line {number}: {reason}")
    return 1 if joined.rejected else 0
