"""`dragoman run` with a bundle without tokenizers: lines of token ids."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

from dragoman.runtime import load

Dragoman = Callable[..., CompletedProcess[str]]


def test_ids_in_and_ids_out(dragoman: Dragoman, token_bundle: Path) -> None:
    expected = load(token_bundle, threads=1).generate([[3, 4, 5, 2], [28, 0, 2]])
    outcome = dragoman("run", token_bundle, "--threads", 1, stdin=b"3 4 5 2\n 28\t0  2\r\n")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    lines = [[int(word) for word in line.split(" ")] for line in outcome.stdout.splitlines()]
    assert lines == [list(result.tokens) for result in expected]
    assert lines[0] != lines[1]


def test_stream_gives_the_same_ids(dragoman: Dragoman, token_bundle: Path) -> None:
    arguments = ("run", token_bundle, "--threads", 1, "3 4 5 2", "28 0 2")
    assert dragoman(*arguments, "--stream").stdout == dragoman(*arguments).stdout


def test_json_has_no_text(dragoman: Dragoman, token_bundle: Path) -> None:
    outcome = dragoman("run", token_bundle, "--json", "3 4 5 2")
    result = json.loads(outcome.stdout)
    assert result["text"] is None and result["tokens"]


def test_lines_that_are_not_ids_of_the_model(dragoman: Dragoman, token_bundle: Path) -> None:
    lines = ["3 4", "three", "3 29", "-1", "", "9" * 30, "1" * 1_000_000, "3 " * 33, "4 3"]
    outcome = dragoman("run", token_bundle, stdin="\n".join(lines).encode())
    assert outcome.returncode == 1
    out, errors = outcome.stdout.split("\n"), outcome.stderr.splitlines()
    assert len(out) == len(lines) + 1
    assert [bool(line) for line in out] == [i in (0, 8) for i in range(10)]
    assert errors[:3] == [
        "line 2: expected token ids separated by spaces: this bundle has no tokenizers",
        "line 3: expected token ids in [0, 29), found 29",
        "line 4: expected token ids in [0, 29), found -1",
    ]
    assert [line.split(":")[0] for line in errors[3:]] == ["line 6", "line 7", "line 8"]
    assert max(map(len, errors)) < 200
