"""`dragoman serve`"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from .options import backend_option
from .sections import SectionedCommand, SectionedOption

network = partial(click.option, cls=SectionedOption, section="Network")
decoding = partial(click.option, cls=SectionedOption, section="Decoding")
limits = partial(click.option, cls=SectionedOption, section="Limits")
bundles = partial(click.option, cls=SectionedOption, section="Bundles")


@click.command(cls=SectionedCommand, short_help="Answer requests over HTTP.")
@click.argument("bundle", nargs=-1, required=True, type=click.Path(path_type=Path))
@network("--host", metavar="NAME", default="127.0.0.1", help="Address to listen on [127.0.0.1].")
@network("--port", metavar="N", type=click.IntRange(0, 65535), default=8000, help="Port [8000].")
@network(
    "--api-key-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Keys, one a line, of which requests must have one [none].",
)
@network("--certificate", metavar="FILE", type=click.Path(path_type=Path), help="For TLS, in PEM.")
@network("--private-key", metavar="FILE", type=click.Path(path_type=Path), help="Its key, in PEM.")
@network(
    "--drain-seconds",
    metavar="S",
    type=click.IntRange(min=0),
    default=30,
    help="For requests to end when the server stops [30].",
)
@network("--log-texts", is_flag=True, help="Show what requests contain in logs.")
@decoding(
    "--workers",
    metavar="N",
    type=click.IntRange(min=1),
    help="Decoding loops over one copy of the weights [as `bench --arrangement` found best, or "
    "one a core].",
)
@decoding(
    "--threads", metavar="M", type=click.IntRange(min=1), help="Of each loop [cores / loops]."
)
@decoding(
    "--batch-size",
    metavar="N",
    type=click.IntRange(min=1),
    help="Rows of a loop's batch: requests x beams [64].",
)
@limits(
    "--max-waiting",
    metavar="N",
    type=click.IntRange(min=1),
    default=256,
    help="Outputs that may wait; then 429 [256].",
)
@limits(
    "--max-new-tokens",
    metavar="N",
    type=click.IntRange(min=1),
    help="At most N tokens for an output [512, or the bundle's].",
)
@limits(
    "--max-body",
    metavar="MB",
    type=click.IntRange(min=1),
    default=64,
    help="Largest body of a request [64].",
)
@limits(
    "--max-audio",
    metavar="S",
    type=click.FloatRange(min=1),
    default=7200.0,
    help="Longest recording, in seconds [7200].",
)
@limits(
    "--timeout",
    metavar="S",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    help="Longest time of a request, in seconds [600].",
)
@bundles(
    "--idle-unload",
    metavar="S",
    type=click.FloatRange(min=0, min_open=True),
    help="Unload a bundle that nobody has used for S seconds [never].",
)
@bundles("--on-demand", is_flag=True, help="Load a bundle with its first request, not before.")
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
    """Answer requests over HTTP with BUNDLEs, each by the name of its directory: KServe v2,
    OpenAI's audio, embeddings and completions, LibreTranslate and Dragoman's own; a page at /.

    \b
    dragoman serve bundles/g2p-en --port 8000
    curl localhost:8000/v1/generate -d '{"source": "dragoman"}'
    """
    from dragoman.runtime.backends import check_threads
    from dragoman.runtime.serving.hosts import names_of
    from dragoman.runtime.serving.keys import read_keys
    from dragoman.runtime.serving.options import (
        EngineOptions,
        ListenOptions,
        ServerOptions,
    )
    from dragoman.runtime.serving.process import serve as run

    if workers is not None or threads is not None:
        check_threads((workers or 1) * (threads or 1))
    options = ServerOptions(
        engine=EngineOptions(
            loops=workers,
            threads=threads,
            rows=batch_size,
            waiting=max_waiting,
            max_new_tokens=max_new_tokens,
            backend=backend,
        ),
        idle_unload=idle_unload,
        longest_request=timeout,
        body_bytes=max_body << 20,
        audio_seconds=max_audio,
        keys=() if api_key_file is None else read_keys(api_key_file),
        log_texts=log_texts,
    )
    listen = ListenOptions(
        host=host,
        port=port,
        certificate=certificate,
        private_key=private_key,
        drain_seconds=drain_seconds,
    )
    run(names_of(bundle), options, listen, preload=not on_demand)
