"""The command `dragoman deploy`."""

from pathlib import Path
from typing import Any

import click

from ..shared.options import PATH, counted, force_option
from ..shared.terminal import notify


@click.group(short_help="Prepare bundles for other servers.")
def deploy() -> None:
    """Prepare bundles for other servers.

    \b
    dragoman deploy triton bundles/g2p-en -o model_repository
    """


@deploy.command(short_help="Write a model repository for NVIDIA Triton Inference Server.")
@click.argument("bundle", nargs=-1, required=True, type=PATH)
@click.option(
    "-o",
    "--output",
    type=PATH,
    required=True,
    help="Directory of the repository, which must not exist yet.",
)
@click.option(
    "--name",
    "names",
    metavar="NAME",
    multiple=True,
    help="Model name; repeat it for each bundle, in order [names of the directories].",
)
@counted(
    "--workers",
    help="Batches decoded in parallel, with shared weights [best of `bench --arrangement` on the "
    "serving machine, or one per core].",
)
@counted("--threads", help="Threads per worker [cores / workers].")
@counted("--batch-size", help="Maximum rows (requests x beams) per worker [64].")
@click.option(
    "--no-streaming", is_flag=True, help="One response per request, for clients that call `infer`."
)
@click.option("--link", is_flag=True, help="Link to the bundles instead of copying them.")
@force_option
def triton(
    bundle: tuple[Path, ...],
    output: Path,
    names: tuple[str, ...],
    no_streaming: bool,
    link: bool,
    force: bool,
    **given: Any,
) -> None:
    """Write a model repository for Triton's Python backend, with a model for each BUNDLE.

    Triton's Python needs `dragoman[cpu]`. Requests are batched continuously.

    \b
    dragoman deploy triton bundles/g2p-en -o model_repository
    tritonserver --model-repository model_repository
    curl localhost:8000/v2/models/g2p-en/generate -d '{"text": "dragoman"}'
    """
    from dragoman import DragomanError
    from dragoman.runtime.serving.options import bundle_names
    from dragoman.runtime.serving.triton.repository import Deployment, write_repository

    if names and len(names) != len(bundle):
        raise DragomanError(
            f"--name: expected {len(bundle)} names, one for each bundle, found {len(names)}"
        )
    if len(set(names)) != len(names):
        raise DragomanError("--name: expected different names, found one twice")
    directories = dict(zip(names, bundle, strict=True)) if names else bundle_names(bundle)
    deployment = Deployment(streaming=not no_streaming, **given)
    write_repository(directories, output, deployment, link=link, overwrite=force)
    notify(f"Wrote {output}: {', '.join(directories)}", err=False)
