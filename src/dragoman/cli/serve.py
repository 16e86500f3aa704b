"""The command `dragoman serve`, whose options may also come from variables and a TOML file."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from dragoman import DragomanError
from dragoman.errors import nearest, shown

from .shared.options import (
    PATH,
    POSITIVE,
    FiniteRange,
    SectionedCommand,
    backend_option,
    check_option,
    devices_option,
    fallback_option,
    in_section,
    renamed,
)

CONFIG = "config"
"""The option that names the file; the file itself cannot."""


class ConfigurableCommand(SectionedCommand):
    """A command whose parameters may also come from the environment and a TOML file.

    The command line comes first, then the environment, then the file. A parameter's name is its key
    in the file; `auto_envvar_prefix` precedes it in the environment. Errors name the source of a
    value.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the parameters from all sources."""
        try:
            rest = super().parse_args(ctx, args)
        except click.UsageError as error:
            _check_variables(ctx)
            parameter = error.param if isinstance(error, click.BadParameter) else None
            source = None if parameter is None else _source(ctx, parameter)
            if parameter is None or source is None:
                raise
            in_file = ctx.default_map or {}
            found = os.environ[source] if source in os.environ else in_file[str(parameter.name)]
            raise _wrong(source, parameter, found) from error
        _check_variables(ctx)
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; errors about a parameter name its source."""
        with _source_names(ctx):
            return super().invoke(ctx)


def _read_file(ctx: click.Context, option: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # the latter: not UTF-8, not TOML
        raise DragomanError(f"{path}: expected a TOML file: {error}") from error
    parameters = _parameters(ctx.command)
    for key, value in values.items():
        if key not in parameters:
            raise DragomanError(
                f"{path}: {key}: expected the name of an option{nearest([key], parameters)}"
            )
        if not _has_type(value, parameters[key]):
            raise _wrong(f"{path}: {key}", parameters[key], value)
    ctx.default_map = values
    ctx.meta[__name__] = path


config_option = click.option(
    f"--{CONFIG}",
    metavar="FILE",
    type=PATH,
    is_eager=True,
    expose_value=False,
    callback=_read_file,
    help="TOML file of these options.",
)


def _check_variables(ctx: click.Context) -> None:
    prefix = f"{ctx.auto_envvar_prefix}_"
    known = [f"{prefix}{name.upper()}" for name in [*_parameters(ctx.command), CONFIG]]
    for variable in sorted(os.environ):
        if variable.startswith(prefix) and variable not in known:
            raise DragomanError(
                f"{variable}: expected the name of an option{nearest([variable], known)}"
            )


def _parameters(command: click.Command) -> dict[str, click.Parameter]:
    return {str(each.name): each for each in command.params if each.name != CONFIG}


def _has_type(value: object, parameter: click.Parameter) -> bool:
    if _is_list(parameter):
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    if isinstance(parameter.type, click.types.BoolParamType):
        return isinstance(value, bool)
    if isinstance(parameter.type, click.types.IntParamType):
        return type(value) is int
    if isinstance(parameter.type, click.types.FloatParamType):
        return type(value) in (int, float)
    return isinstance(value, str)


def _is_list(parameter: click.Parameter) -> bool:
    return parameter.nargs == -1 or parameter.multiple


def _expected(parameter: click.Parameter) -> str:
    kind = parameter.type
    if _is_list(parameter):
        return "a list of strings"
    if isinstance(kind, click.Choice):
        return f"one of {', '.join(map(str, kind.choices))}"
    if isinstance(kind, click.types.BoolParamType):
        return "true or false"
    if isinstance(kind, click.IntRange | click.FloatRange):
        noun = "an integer" if isinstance(kind, click.IntRange) else "a number"
        if kind.max is not None:
            return f"{noun} from {kind.min} to {kind.max}"
        return f"{noun} {'above' if kind.min_open else 'of at least'} {kind.min}"
    return "a path" if isinstance(kind, click.Path) else "a string"


def _wrong(source: str, parameter: click.Parameter, found: object) -> DragomanError:
    return DragomanError(f"{source}: expected {_expected(parameter)}, found {shown(found)}")


def _source(ctx: click.Context, parameter: click.Parameter) -> str | None:
    name = str(parameter.name)
    source = ctx.get_parameter_source(name)
    if source == ParameterSource.ENVIRONMENT:
        return f"{ctx.auto_envvar_prefix}_{name.upper()}"
    if source == ParameterSource.DEFAULT_MAP:
        return f"{ctx.meta[__name__]}: {name}"
    return None


def _given_names(ctx: click.Context, *names: str) -> list[str]:
    """Return those of some parameters that have values, by the names in their sources."""
    return [
        _source_name(ctx, name)
        for name in names
        if ctx.get_parameter_source(name) not in (None, ParameterSource.DEFAULT)
    ]


def _source_name(ctx: click.Context, name: str) -> str:
    """Return the name of a parameter in the source of its value; by default, its option."""
    parameter = _parameters(ctx.command)[name]
    return _source(ctx, parameter) or parameter.opts[0]


@contextmanager
def _source_names(ctx: click.Context) -> Iterator[None]:
    """Replace parameter names in errors by the names in the sources of their values."""
    try:
        yield
    except DragomanError as error:
        names = {name: _source_name(ctx, name) for name in _parameters(ctx.command)}
        raise DragomanError(renamed(str(error), names)) from error


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
        others = _given_names(click.get_current_context(), "host", "port")
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
