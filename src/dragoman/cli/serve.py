"""The command `dragoman serve`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from .shared.options import SectionedCommand, SectionedOption, backend_option

network = partial(click.option, cls=SectionedOption, section="Network")
decoding = partial(click.option, cls=SectionedOption, section="Decoding")
limits = partial(click.option, cls=SectionedOption, section="Limits")
bundles = partial(click.option, cls=SectionedOption, section="Bundles")


@click.command(cls=SectionedCommand, short_help="Serve bundles over HTTP.")
@click.argument("bundle", nargs=-1, required=True, type=click.Path(path_type=Path))
@network("--host", metavar="NAME", default="127.0.0.1", help="Bind to this address [127.0.0.1].")
@network(
    "--port",
    metavar="N",
    type=click.IntRange(0, 65535),
    default=8000,
    help="Bind to this port; 0: any free one [8000].",
)
@network(
    "--api-key-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File of API keys, one per line; requests need one of them [none].",
)
@network(
    "--certificate", metavar="FILE", type=click.Path(path_type=Path), help="TLS certificate, PEM."
)
@network(
    "--private-key",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Private key of the certificate, PEM.",
)
@network(
    "--drain-seconds",
    metavar="S",
    type=click.IntRange(min=0),
    default=30,
    help="Wait for running requests at shutdown [30].",
)
@network("--log-texts", is_flag=True, help="Log the bodies of requests.")
@decoding(
    "--workers",
    metavar="N",
    type=click.IntRange(min=1),
    help="Batches decoded in parallel, with shared weights [best of `bench --arrangement`, or one "
    "per core].",
)
@decoding(
    "--threads",
    metavar="N",
    type=click.IntRange(min=1),
    help="Threads per worker [cores / workers].",
)
@decoding(
    "--batch-size",
    metavar="N",
    type=click.IntRange(min=1),
    help="Maximum rows (requests x beams) per worker [64].",
)
@limits(
    "--max-waiting",
    metavar="N",
    type=click.IntRange(min=1),
    default=256,
    help="Maximum queued outputs per bundle; then status 429 [256].",
)
@limits(
    "--max-new-tokens",
    metavar="N",
    type=click.IntRange(min=1),
    help="Maximum new tokens per output [512, or the bundle's default].",
)
@limits(
    "--max-body",
    metavar="MB",
    type=click.IntRange(min=1),
    default=64,
    help="Maximum size of a request [64].",
)
@limits(
    "--max-audio",
    metavar="S",
    type=click.FloatRange(min=1),
    default=7200.0,
    help="Maximum seconds of audio per request [7200].",
)
@limits(
    "--timeout",
    metavar="S",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    help="Maximum seconds per request [600].",
)
@bundles(
    "--idle-unload",
    metavar="S",
    type=click.FloatRange(min=0, min_open=True),
    help="Unload a bundle after S seconds without requests [never].",
)
@bundles("--on-demand", is_flag=True, help="Load each bundle at its first request.")
@backend_option
def serve(
    bundle: tuple[Path, ...],
    host: str,
    port: int,
    api_key_file: Path | None,
    certificate: Path | None,
    private_key: Path | None,
    drain_seconds: int,
    log_texts: bool,
    workers: int | None,
    threads: int | None,
    batch_size: int | None,
    max_waiting: int,
    max_new_tokens: int | None,
    max_body: int,
    max_audio: float,
    timeout: float,
    idle_unload: float | None,
    on_demand: bool,
    backend: str | None,
) -> None:
    """Serve BUNDLEs over HTTP, each as a model with the name of its directory.

    The APIs are KServe v2, OpenAI (audio, embeddings, completions), LibreTranslate and Dragoman's
    own. / is a page to try them.

    \b
    dragoman serve bundles/g2p-en --port 8000
    curl localhost:8000/v1/generate -d '{"source": "dragoman"}'
    """
    from dragoman.runtime.backends import check_threads
    from dragoman.runtime.serving.api_keys import read_keys
    from dragoman.runtime.serving.options import (
        EngineOptions,
        ListenOptions,
        ServerOptions,
        bundle_names,
    )
    from dragoman.runtime.serving.process import serve as run

    if workers is not None or threads is not None:
        check_threads((workers or 1) * (threads or 1))
    options = ServerOptions(
        engine=EngineOptions(
            workers=workers,
            threads=threads,
            batch_size=batch_size,
            max_waiting=max_waiting,
            max_new_tokens=max_new_tokens,
            backend=backend,
        ),
        idle_unload=idle_unload,
        timeout=timeout,
        max_body_bytes=max_body << 20,
        max_audio=max_audio,
        api_keys=() if api_key_file is None else read_keys(api_key_file),
        log_texts=log_texts,
    )
    listen = ListenOptions(
        host=host,
        port=port,
        certificate=certificate,
        private_key=private_key,
        drain_seconds=drain_seconds,
    )
    run(bundle_names(bundle), options, listen, preload=not on_demand)
