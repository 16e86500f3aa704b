"""Help: one screen for each command. Names and texts of the library, as the terminal shows them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import dragoman as package
from dragoman.cli.run import run
from dragoman.cli.shared.options import in_option_names
from dragoman.files.text_lines import printable
from dragoman.runtime import read_bundle
from dragoman.runtime.format.writing import write_manifest

Dragoman = Callable[..., CompletedProcess[str]]

SCREEN, SECTIONS = 40, 52
"""Lines of help. A command with more options than a screen holds lists them under headings, among
which one is looked up; all of them in a window of full height."""

COMMANDS = (
    *("train", "export", "optimize", "attention", "build", "encode", "rerank", "run"),
    *("run-file", "score", "classify"),
    *("verify", "sensitivity", "report", "sign", "bench", "doctor", "inspect", "serve", "deploy"),
    *("detect-language", "distill", "listen"),
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


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("num_beams: expected 1, found 2", "--beams: expected 1, found 2"),
        ("temperature, top_k: set do_sample", "--temperature, --top-k: set --sample"),
        ("seed: no; prefix: no", "--seed: no; --prefix: no"),
        ("a prefix: no seed", "a prefix: no seed"),
        ("must_contain: 'seed: num_beams' is no", "--must-contain: 'seed: num_beams' is no"),
        ('prefix: found "it\'s; seed: x"', '--prefix: found "it\'s; seed: x"'),
        (
            "the model's num_beams and its max_new_tokens_2",
            "the model's --beams and its max_new_tokens_2",
        ),
        ("max_batch_size: 0", "--batch-size: 0"),
        ("", ""),
    ],
)
def test_names(message: str, expected: str) -> None:
    assert in_option_names(message, run) == expected


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a note", "a note"),
        ("ünïcode آ 日本", "ünïcode آ 日本"),
        ("a\nb\r\x1b[31mc\t", "a\\nb\\r\\x1b[31mc\\t"),
        ("\u202e\udc80\U000e0001", "\\u202e\\udc80\\U000e0001"),
        ("", ""),
    ],
)
def test_characters_with_an_effect_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_notes_of_a_bundle(dragoman: Dragoman, bundle_copy: Path) -> None:
    manifest = read_bundle(bundle_copy).manifest
    write_manifest(dataclasses.replace(manifest, notes=("a\n\x1b[31mb [red]c",)), bundle_copy)
    outcome = dragoman("inspect", bundle_copy)
    assert outcome.returncode == 0
    assert "\x1b" not in outcome.stdout
    assert "a\\n\\x1b[31mb [red]c" in outcome.stdout


def test_a_path_in_what_a_command_says_at_its_end(
    dragoman: Dragoman, checkpoint: Path, tmp_path: Path, copied_export: None
) -> None:
    outcome = dragoman("export", checkpoint, "-o", tmp_path / "a\n\x1b[31mb")
    (line,) = outcome.stdout.splitlines()
    assert line.startswith(f"Exported {tmp_path}/a\\n\\x1b[31mb, not verified.")


def test_settings_of_a_bundle(dragoman: Dragoman, bundle_copy: Path) -> None:
    manifest = read_bundle(bundle_copy).manifest
    settings = dataclasses.replace(
        manifest.generation, end_token_ids=(2, 7), suppressed_token_ids=tuple(range(3, 13))
    )
    write_manifest(dataclasses.replace(manifest, generation=settings), bundle_copy)
    outcome = dragoman("inspect", bundle_copy)
    shown = " ".join(outcome.stdout.split())
    assert "settings end_token_ids [2, 7]; suppressed_token_ids 10 tokens" in shown
