"""Options of a command from environment variables and a TOML file."""

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

from .options import PATH, SectionedCommand, renamed

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
        with source_names(ctx):
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


def given_names(ctx: click.Context, *names: str) -> list[str]:
    """Return those of some parameters that have values, by the names in their sources."""
    return [
        source_name(ctx, name)
        for name in names
        if ctx.get_parameter_source(name) not in (None, ParameterSource.DEFAULT)
    ]


def source_name(ctx: click.Context, name: str) -> str:
    """Return the name of a parameter in the source of its value; by default, its option."""
    parameter = _parameters(ctx.command)[name]
    return _source(ctx, parameter) or parameter.opts[0]


@contextmanager
def source_names(ctx: click.Context) -> Iterator[None]:
    """Replace parameter names in errors by the names in the sources of their values."""
    try:
        yield
    except DragomanError as error:
        names = {name: source_name(ctx, name) for name in _parameters(ctx.command)}
        raise DragomanError(renamed(str(error), names)) from error
