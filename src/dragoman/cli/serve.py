"""The command `dragoman serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dragoman import DragomanError

from .shared.options import (
    PATH,
    POSITIVE,
    FiniteRange,
    backend_option,
    check_option,
    devices_option,
    fallback_option,
    in_section,
)
from .shared.settings import ConfigurableCommand, config_option, given_names

network, decoding, limits, loading = map(in_section, ("Network", "Decoding", "Limits", "Bundles"))
PREFIX = "DRAGOMAN_SERVE"


@click.command(
    cls=ConfigurableCommand,
    short_help="Serve bundles over HTTP.",
    context_settings={"auto_envvar_prefix": PREFIX},
)
@click.argument(
    "bundles", nargs=-1, required=True, type=PATH, metavar="BUNDLE...", envvar=f"{PREFIX}_BUNDLES"
)
@network("--host", metavar="NAME", default="127.0.0.1", help="Bind to this address [127.0.0.1].")
@network(
    "--port",
    metavar="N",
    type=click.IntRange(0, 65535),
    default=8000,
    help="Bind to this port; 0: any free one [8000].",
)
@network(
    "--unix-socket",
    metavar="PATH",
    type=PATH,
    help="Listen on this Unix socket, not on an address and port.",
)
@network(
    "--api-key-file",
    metavar="FILE",
    type=PATH,
    help="File of API keys, one per line; requests need one of them [none].",
)
@network("--certificate", metavar="FILE", type=PATH, help="TLS certificate, PEM.")
@network("--private-key", metavar="FILE", type=PATH, help="Private key of the certificate, PEM.")
@network(
    "--cors-origin",
    metavar="ORIGIN",
    multiple=True,
    help="Let pages of this origin use the server, such as https://app.example, or all: *; "
    "repeatable [none].",
)
@network(
    "--root-path",
    metavar="PATH",
    default="",
    help="Prefix that a proxy puts before all paths, such as /translator [none].",
)
@network(
    "--trusted-proxies",
    metavar="ADDRESS,...",
    default="",
    help="Proxies whose X-Forwarded-For says who the client is, in logs: addresses, networks such "
    "as 10.0.0.0/8, or unix [none].",
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
    type=POSITIVE,
    help="Batches decoded in parallel [best of `bench --arrangement`, or one per core or GPU].",
)
@decoding(
    "--threads", metavar="N", type=POSITIVE, help="Processor threads per worker [cores / workers]."
)
@decoding(
    "--batch-size",
    metavar="N",
    type=POSITIVE,
    help="Maximum rows (requests x beams) per worker [64; GPU: by its memory].",
)
@decoding(
    "--split-special-tokens/--no-split-special-tokens",
    default=True,
    help="Read special tokens in texts, such as </s>, as plain text, unless a request says "
    "otherwise [yes].",
)
@decoding("--greedy", is_flag=True, help="Decode speech once, without beams and a detector.")
@limits(
    "--max-waiting",
    metavar="N",
    type=POSITIVE,
    default=256,
    help="Maximum queued outputs per bundle; then status 429 [256].",
)
@limits(
    "--max-new-tokens",
    metavar="N",
    type=POSITIVE,
    help="Maximum new tokens per output [512, or the bundle's default].",
)
@limits(
    "--max-body", metavar="MB", type=POSITIVE, default=64, help="Maximum size of a request [64]."
)
@limits(
    "--max-audio",
    metavar="S",
    type=FiniteRange(min=1),
    default=7200.0,
    help="Maximum seconds of audio per request [7200].",
)
@limits(
    "--max-open-audio",
    metavar="S",
    type=FiniteRange(min=1),
    default=14400.0,
    help="Maximum seconds of audio of all requests at once [14400].",
)
@limits(
    "--allow-token-ids",
    is_flag=True,
    help="Accept token ids at /v1/embeddings, numbered by the model's own tokenizer.",
)
@limits(
    "--timeout",
    metavar="S",
    type=FiniteRange(min=0, min_open=True),
    default=600.0,
    help="Maximum seconds per request [600].",
)
@loading(
    "--idle-unload",
    metavar="S",
    type=FiniteRange(min=0, min_open=True),
    help="Unload a bundle after S seconds without requests [never].",
)
@loading("--on-demand", is_flag=True, help="Load each bundle at its first request.")
@backend_option
@devices_option
@check_option
@fallback_option
@config_option
def serve(
    bundles: tuple[Path, ...],
    max_body: int,
    cors_origin: tuple[str, ...],
    trusted_proxies: str,
    device: tuple[str, ...],
    on_demand: bool,
    **given: Any,
) -> None:
    """Serve BUNDLEs over HTTP, each as a model with the name of its directory.

    The APIs are KServe v2, OpenAI, LibreTranslate and Dragoman's own; / is a page to try them.

    Each option may also be a variable, DRAGOMAN_SERVE_MAX_BODY=8, or a line of a TOML file,
    max_body = 8. The command line comes first, then variables, then the file.

    \b
    dragoman serve bundles/g2p-en --port 8000
    curl localhost:8000/v1/generate -d '{"source": "dragoman"}'
    """
    from dragoman.runtime.backends import check_threads
    from dragoman.runtime.serving.options import (
        EngineOptions,
        ListenOptions,
        ServerOptions,
        bundle_names,
        fields_of,
    )
    from dragoman.runtime.serving.process import serve as run

    if given["unix_socket"] is not None:
        others = given_names(click.get_current_context(), "host", "port")
        if others:
            raise DragomanError(
                f"unix_socket: expected it without an address and port, found {others[0]}, too"
            )
    if given["workers"] is not None or given["threads"] is not None:
        check_threads((given["workers"] or 1) * (given["threads"] or 1))
    given |= {
        "devices": device,
        "max_body_bytes": max_body << 20,
        "cors_origins": cors_origin,
        "trusted_proxies": tuple(filter(None, map(str.strip, trusted_proxies.split(",")))),
    }
    engine = EngineOptions(**fields_of(EngineOptions, given))
    options = ServerOptions(engine=engine, **fields_of(ServerOptions, given))
    listen = ListenOptions(**fields_of(ListenOptions, given))
    run(bundle_names(bundles), options, listen, preload=not on_demand)
