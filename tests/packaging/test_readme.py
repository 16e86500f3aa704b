"""README is read in three minutes, and its links lead somewhere."""

from __future__ import annotations

import json
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


def test_the_range_of_encoders_is_that_of_the_record() -> None:
    """Times as fast as the best peer: in fp32 as the best in fp32, below it as the best of all."""
    record = ROOT / "benchmarks/results/encoding-minilm-l6-1-2-threads.json"
    rows = json.loads(record.read_text(encoding="utf-8"))["measurements"]
    ranges = []
    for precision, ratio in (
        ("fp32", "fp32_ratio"),
        ("int8", "reduced_ratio"),
        ("int4", "reduced_ratio"),
    ):
        own = [row[ratio] for row in rows if row["contender"] == f"Dragoman {precision}"]
        assert len(own) == 12
        ranges.append(f"{min(own):.2f}x to {max(own):.2f}x")
    (row,) = re.findall(r"^\| vectors of MiniLM-L6[^|]*\| (.*) \|$", README, re.MULTILINE)
    assert row.split(" | ") == ranges
