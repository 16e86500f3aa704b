"""Help: one screen for each command, with an example of it."""

from __future__ import annotations

from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

import dragoman as package

Dragoman = Callable[..., CompletedProcess[str]]

SCREEN, SECTIONS = 40, 50
"""Lines of help. A command with more options than a screen holds lists them under headings, among
which one is looked up; all of them in a window of full height."""

COMMANDS = (
    *("train", "export", "optimize", "attention", "build", "encode", "run", "score", "verify"),
    *("sensitivity", "report", "sign", "bench", "inspect", "serve"),
)


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize("command", COMMANDS)
def test_one_screen_with_an_example(dragoman: Dragoman, command: str, flag: str) -> None:
    outcome = dragoman(command, flag)
    lines = outcome.stdout.splitlines()
    assert outcome.returncode == 0 and outcome.stderr == ""
    assert len(lines) <= (SECTIONS if len(headings(lines)) > 1 else SCREEN)
    assert max(map(len, lines)) <= 100
    assert any(line.strip().startswith(f"dragoman {command} ") for line in lines)


def headings(lines: list[str]) -> list[int]:
    """The indices of lines such as `Options:`."""
    return [i for i, line in enumerate(lines) if line[:1].isalpha() and line.endswith(":")]


def test_every_option_is_explained(dragoman: Dragoman) -> None:
    for command in COMMANDS:
        lines = dragoman(command, "--help").stdout.splitlines()
        options = [line for line in lines[headings(lines)[0] :] if line.startswith(" ")]
        assert options
        for index, line in enumerate(options):
            if not line.lstrip().startswith("-"):
                continue
            explained = len(line.strip().split("  ", 1)) == 2
            continued = index + 1 < len(options) and not options[index + 1].lstrip().startswith("-")
            assert explained or continued, f"{command}: {line}"


def test_the_commands_are_listed(dragoman: Dragoman) -> None:
    outcome = dragoman("--help")
    assert outcome.returncode == 0
    listed = outcome.stdout.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in listed] == sorted(COMMANDS)
    assert all(line.rstrip().endswith(".") for line in listed)
    assert len(outcome.stdout.splitlines()) <= SCREEN


def test_without_a_command_the_help_is_shown(dragoman: Dragoman) -> None:
    outcome = dragoman()
    assert "Commands:" in outcome.stdout + outcome.stderr


def test_version(dragoman: Dragoman) -> None:
    outcome = dragoman("--version")
    assert outcome.returncode == 0
    assert outcome.stdout.strip() == f"dragoman, version {package.__version__}"
