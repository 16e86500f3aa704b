"""Text from files reaches the terminal on one line, without effect on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from dragoman.printable import printable
from dragoman.runtime import read_bundle
from dragoman.runtime.format.writing import write_manifest

Dragoman = Callable[..., CompletedProcess[str]]


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


def test_settings_of_a_bundle(dragoman: Dragoman, bundle_copy: Path) -> None:
    manifest = read_bundle(bundle_copy).manifest
    settings = dataclasses.replace(
        manifest.generation, end_token_ids=(2, 7), suppressed_token_ids=tuple(range(3, 13))
    )
    write_manifest(dataclasses.replace(manifest, generation=settings), bundle_copy)
    outcome = dragoman("inspect", bundle_copy)
    shown = " ".join(outcome.stdout.split())
    assert "settings end_token_ids [2, 7]; suppressed_token_ids 10 tokens" in shown
