"""`dragoman deploy`"""

from __future__ import annotations

from pathlib import Path

import click

from .options import force_option


@click.group(short_help="Write what other servers need to serve bundles.")
def deploy() -> None:
    """Write what other servers need to serve bundles.

    \b
    dragoman deploy triton bundles/g2p-en -o model_repository
    """


@deploy.command(short_help="A model repository for NVIDIA's Triton Inference Server.")
@click.argument("bundle", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="The repository's directory, which must not exist yet.",
)
@click.option(
    "--name",
    "names",
    metavar="NAME",
    multiple=True,
    help="Of the model; once for each bundle, in order [its directory's].",
)
@click.option(
    "--workers",
    metavar="N",
    type=click.IntRange(min=1),
    help="Decoding loops over one copy of the weights [as `bench --arrangement` found best on the "
    "serving machine, or one a core].",
)
@click.option(
    "--threads", metavar="M", type=click.IntRange(min=1), help="Of each loop [cores / loops]."
)
@click.option(
    "--batch-size",
    metavar="N",
    type=click.IntRange(min=1),
    help="Rows of a loop's batch: requests x beams [64].",
)
@click.option(
    "--no-streaming",
    is_flag=True,
    help="Answer each request once: what clients that call `infer` need of Triton.",
)
@click.option("--link", is_flag=True, help="Point to the bundles in place of copying them.")
@force_option
def triton(
    bundle: tuple[Path, ...],
    output: Path,
    names: tuple[str, ...],
    workers: int | None,
    threads: int | None,
    batch_size: int | None,
    no_streaming: bool,
    link: bool,
    force: bool,
) -> None:
    """Write a model repository of BUNDLEs, each a model that Triton's Python backend runs; requests
    that come at different times are decoded in one batch.

    Triton's Python needs `dragoman[cpu]`.

    \b
    dragoman deploy triton bundles/g2p-en -o model_repository
    tritonserver --model-repository model_repository
    curl localhost:8000/v2/models/g2p-en/generate -d '{"text": "dragoman"}'
    """
    from dragoman import DragomanError
    from dragoman.runtime.serving.hosts import names_of
    from dragoman.runtime.serving.triton.config import Deployment
    from dragoman.runtime.serving.triton.repository import write_repository

    if names and len(names) != len(bundle):
        raise DragomanError(f"--name: expected {len(bundle)}, one a bundle, found {len(names)}")
    if len(set(names)) != len(names):
        raise DragomanError("--name: expected different names")
    directories = dict(zip(names, bundle, strict=True)) if names else names_of(bundle)
    deployment = Deployment(
        loops=workers, threads=threads, rows=batch_size, streaming=not no_streaming
    )
    write_repository(directories, output, deployment, link=link, overwrite=force)
    click.echo(f"Wrote {output}: {', '.join(directories)}")
