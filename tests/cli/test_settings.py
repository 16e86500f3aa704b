"""Options of `dragoman serve` from the environment and a file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from dragoman import DragomanError
from dragoman.cli.serve import serve

PREFIX = "DRAGOMAN_SERVE_"
CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"]}  # as below `dragoman`
OPTIONS = [each for each in serve.params if each.name not in ("bundles", "config")]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(PREFIX):
            monkeypatch.delenv(name)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that the environment names."""
    (tmp_path / "serve.toml").touch()
    monkeypatch.setenv(f"{PREFIX}CONFIG", str(tmp_path / "serve.toml"))
    yield tmp_path / "serve.toml"


def parsed(*arguments: str) -> dict[str, Any]:
    return serve.make_context("serve", list(arguments), **CONTEXT).params


def sample(option: click.Parameter) -> Any:
    """A value that is no option's default."""
    if isinstance(option.type, click.types.BoolParamType):
        return option.default is not True
    if isinstance(option.type, click.types.IntParamType):
        return 7
    if isinstance(option.type, click.types.FloatParamType):
        return 7.5
    if isinstance(option.type, click.Choice):
        return option.type.choices[-1]
    return ["here", "there"] if option.multiple else "here"


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option(
    option: click.Parameter, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, value = str(option.name), sample(option)
    words = [value] if not isinstance(value, list) else value
    if isinstance(value, bool):
        flags = [option.opts[0] if value else option.secondary_opts[0]]
    else:
        flags = [word for each in words for word in (option.opts[0], str(each))]
    expected = parsed("bundle", *flags)
    assert expected != parsed("bundle")
    config.write_text(f"bundles = ['bundle']\n{name} = {json.dumps(value)}\n")
    assert parsed() == expected
    config.write_text("bundles = ['bundle']\n")
    monkeypatch.setenv(f"{PREFIX}{name.upper()}", " ".join(map(str, words)))
    assert parsed() == expected


def test_the_order_of_the_sources(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text("bundles = ['of', 'file']\nport = 1\n")
    assert (parsed()["bundles"], parsed()["port"]) == ((Path("of"), Path("file")), 1)
    monkeypatch.setenv(f"{PREFIX}PORT", "2")
    monkeypatch.setenv(f"{PREFIX}BUNDLES", os.pathsep.join(["of", "variable"]))
    assert (parsed()["bundles"], parsed()["port"]) == ((Path("of"), Path("variable")), 2)
    found = parsed("of", "arguments", "--port", "3")
    assert (found["bundles"], found["port"]) == ((Path("of"), Path("arguments")), 3)
    monkeypatch.setenv(f"{PREFIX}PORT", "")  # as if it were not set
    assert parsed("--port", "4")["port"] == 4 and parsed()["port"] == 1


@pytest.mark.parametrize(
    ("variables", "content", "words"),
    [
        ({"PORT": "99999"}, "", "PREFIX_PORT: expected an integer from 0 to 65535, found '99999'"),
        ({"WORKERS": "0"}, "", "PREFIX_WORKERS: expected an integer of at least 1, found '0'"),
        ({"TIMEOUT": "0"}, "", "PREFIX_TIMEOUT: expected a number above 0, found '0'"),
        ({"TIMEOUT": "nan"}, "", "PREFIX_TIMEOUT: expected a number above 0, found 'nan'"),
        ({}, "timeout = nan", "FILE: timeout: expected a number above 0, found nan"),
        ({}, "max_audio = inf", "FILE: max_audio: expected a number of at least 1, found inf"),
        ({"LOG_TEXTS": "x"}, "", "PREFIX_LOG_TEXTS: expected true or false, found 'x'"),
        ({"BACKEND": "x"}, "", "PREFIX_BACKEND: expected one of "),
        ({"DEVICE": "x"}, "", "PREFIX_DEVICE: expected cpu, cuda or cuda:N, such as cuda:1, fo"),
        (
            {"PROT": "1"},
            "",
            "PREFIX_PROT: expected the name of an option; the nearest is PREFIX_PO",
        ),
        ({}, "port =", "FILE: expected a TOML file: "),
        ({}, "prot = 1", "FILE: prot: expected the name of an option; the nearest is port"),
        ({}, "config = ''", "FILE: config: expected the name of an option"),
        ({}, "[serve]\nport = 1", "FILE: serve: expected the name of an option"),
        ({}, "port = true", "FILE: port: expected an integer from 0 to 65535, found True"),
        ({}, "port = '1'", "FILE: port: expected an integer from 0 to 65535, found '1'"),
        ({}, "port = -1", "FILE: port: expected an integer from 0 to 65535, found -1"),
        ({}, "max_audio = 0", "FILE: max_audio: expected a number of at least 1, found 0"),
        ({}, "host = 1", "FILE: host: expected a string, found 1"),
        ({}, "log_texts = 'yes'", "FILE: log_texts: expected true or false, found 'yes'"),
        ({}, "cors_origin = '*'", "FILE: cors_origin: expected a list of strings, found '*'"),
        ({}, "bundles = [1]", "FILE: bundles: expected a list of strings, found [1]"),
        ({"ROOT_PATH": "x"}, "", "PREFIX_ROOT_PATH: expected a path such as /translator"),
        ({}, "cors_origin = ['x']", "FILE: cors_origin: expected * or an origin such as"),
        ({}, "drain_seconds = 99999", "FILE: drain_seconds: expected 0 to 86400 seconds"),
        ({}, "threads = 9999", "FILE: threads: expected 1 to "),
        ({"PORT": "1"}, "unix_socket = 'x'", "FILE: unix_socket: expected it without an address"),
    ],
)
def test_errors_name_the_source(
    variables: dict[str, str],
    content: str,
    words: str,
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config.write_text(content)
    for name, value in variables.items():
        monkeypatch.setenv(PREFIX + name, value)
    with pytest.raises(DragomanError) as caught:
        serve.main(["bundle"], standalone_mode=False, **CONTEXT)
    assert str(caught.value).startswith(
        words.replace("FILE", str(config)).replace("PREFIX_", PREFIX)
    )


def test_a_file_that_is_missing(config: Path) -> None:
    config.unlink()
    with pytest.raises(DragomanError, match=f"^{config}: expected a TOML file: .*No such file"):
        parsed("bundle")


def test_help_needs_no_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(f"{PREFIX}BUNDLE", "one")
    with pytest.raises(click.exceptions.Exit):
        parsed("--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert f"variable, {PREFIX}MAX_BODY=8, or a line of a TOML file, max_body = 8." in shown
    with pytest.raises(DragomanError, match=rf"BUNDLE: .*; the nearest is {PREFIX}BUNDLES$"):
        parsed()
