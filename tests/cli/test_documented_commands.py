"""Commands of the guides give, with the shipped model, the output that stands below them."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

Outcome = CompletedProcess[str]
Dragoman = Callable[..., Outcome]

DOCS = Path(__file__).parents[2] / "docs"
DECODING = DOCS / "guides" / "decoding.md"
PAGES = (DECODING, DOCS / "guides" / "scoring.md", DOCS / "getting-started.md")
COMMAND = re.compile(r"^(?:printf '([^']*)' \| )?dragoman ((?:run|score) bundles/g2p-en.*)$")


def blocks(page: Path, language: str) -> list[str]:
    pattern = rf"^```{language}\n(.*?)^```$"
    return re.findall(pattern, page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands() -> Iterator[tuple[str, str]]:
    """Commands that need nothing but the shipped model, and their output."""
    for page in PAGES:
        for block in blocks(page, "console"):
            for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
                if COMMAND.match(command):
                    yield command, output.rstrip("\n")


@pytest.fixture(scope="module")
def place(build_here: Dragoman, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the bundle where the pages have it."""
    directory = tmp_path_factory.mktemp("documented")
    built = build_here("build", "g2p-en", "-o", directory / "bundles" / "g2p-en", "--limit", 1)
    assert built.returncode == 0, built.stderr
    return directory


def test_there_are_such_commands() -> None:
    assert len([*commands()]) >= 8


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
