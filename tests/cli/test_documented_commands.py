"""Commands of the guides give, with the shipped models, the output that stands below them; commands
of all pages have the options that are shown."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import click
import pytest

from dragoman.cli.main import cli

Outcome = CompletedProcess[str]
Dragoman = Callable[..., Outcome]

DOCS = Path(__file__).parents[2] / "docs"
DECODING = DOCS / "guides" / "decoding.md"
DOCUMENTS = DOCS / "guides" / "documents.md"
PAGES = (DECODING, DOCUMENTS, DOCS / "guides" / "scoring.md", DOCS / "getting-started.md")
SHIPPED = {"g2p-en": (), "bible-en-es": ("--with-attention",)}
COMMAND = re.compile(
    rf"^(?:printf '([^']*)' \| )?dragoman ((?:run|score) bundles/(?:{'|'.join(SHIPPED)}) .*)$"
)


def blocks(page: Path, language: str) -> list[str]:
    pattern = rf"^```{language}\n(.*?)^```$"
    return re.findall(pattern, page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def shown(page: Path) -> Iterator[tuple[str, str]]:
    """Commands of a page, and their output."""
    for block in blocks(page, "console"):
        yield from re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)


def commands() -> Iterator[tuple[str, str]]:
    """Commands that need nothing but the shipped models, and their output."""
    for page in PAGES:
        for command, output in shown(page):
            if COMMAND.match(command):
                yield command, output.rstrip("\n")


@pytest.fixture(scope="module")
def place(build_here: Dragoman, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the bundles and the files where the pages have them."""
    directory = tmp_path_factory.mktemp("documented")
    for name, options in SHIPPED.items():
        output = directory / "bundles" / name
        built = build_here("build", name, "-o", output, "--limit", 1, *options)
        assert built.returncode == 0, built.stderr
    for command, text in shown(DOCUMENTS):
        if command.startswith("cat "):
            (directory / command.removeprefix("cat ")).write_text(text, encoding="utf-8")
    return directory


def test_there_are_such_commands() -> None:
    assert len([*commands()]) >= 12


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_options_are_those_of_the_commands(page: Path) -> None:
    group = click.Context(cli, **cli.context_settings)
    for block in (*blocks(page, "console"), *blocks(page, "bash")):
        for line in re.findall(
            r"^(?:\$ )?(?:.* \| )?dragoman ((?:.*\\\n)*.*)$", block, re.MULTILINE
        ):
            words = shlex.split(line.replace("\\\n", " "), comments=True)
            name, *arguments = takewhile(lambda word: word[:1] not in [*"<>|&"], words)
            if not name.startswith("-"):
                command = cli.get_command(group, name)
                assert command is not None, line
                command.make_context(name, arguments, parent=group)


@pytest.mark.parametrize(("command", "output"), [*commands()])
def test_commands(
    dragoman: Dragoman, monkeypatch: pytest.MonkeyPatch, place: Path, command: str, output: str
) -> None:
    monkeypatch.chdir(place)
    found = COMMAND.match(command)
    assert found is not None
    stdin = (found[1] or "").encode().decode("unicode_escape").encode()
    outcome = dragoman(*shlex.split(found[2]), stdin=stdin)
    assert (outcome.stdout + outcome.stderr).rstrip("\n") == output


def test_the_call_in_python(
    monkeypatch: pytest.MonkeyPatch,
    place: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(place)
    (code,), (output,) = blocks(DECODING, "python"), blocks(DECODING, "text")
    (tmp_path / "code.py").write_text(code, encoding="utf-8")
    runpy.run_path(str(tmp_path / "code.py"))
    assert capfd.readouterr().out == output


def test_the_object_of_a_line(
    dragoman: Dragoman, monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    monkeypatch.chdir(place)
    (command,) = re.findall(
        r"^For `dragoman (.*)`, numbers rounded:$",
        DECODING.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    (shown,) = blocks(DECODING, "json")
    found = json.loads(dragoman(*shlex.split(command)).stdout, parse_float=rounded)
    assert found == json.loads(shown)
    assert without_space(json.dumps(found)) == without_space(json.dumps(json.loads(shown)))


def rounded(number: str) -> Any:
    return round(float(number), 2)


def without_space(text: str) -> str:
    """The order of keys counts."""
    return "".join(text.split())
