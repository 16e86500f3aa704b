"""README is read in three minutes, and its links lead somewhere."""

from __future__ import annotations

import re

from .conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 160


def test_links_to_files_of_the_repository_exist() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", README)
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_target_of_make_that_it_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = set(re.findall(r"^make ([a-z-]+)|`make ([a-z-]+)`", README, re.MULTILINE))
    assert {block or inline for block, inline in named} <= targets
