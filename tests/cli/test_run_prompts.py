"""`dragoman run` with a decoder-only model: prompts that fill its positions, and longer ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from dragoman.runtime import load

from ..small_gpt2 import POSITIONS, small_gpt2

Dragoman = Callable[..., CompletedProcess[str]]

FULL = [3 + token for token in range(POSITIONS)]
LONG = [*FULL, 5]
TOO_LONG = (
    f"prompt has {POSITIONS + 1} tokens, expected at most {POSITIONS}, the positions of this model"
)


def line(tokens: list[int]) -> str:
    return " ".join(map(str, tokens))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of token ids."""
    directory = tmp_path_factory.mktemp("gpt2")
    small_gpt2(directory)
    return directory / "bundle"


def test_a_prompt_that_does_not_fit_is_named_by_its_line(dragoman: Dragoman, bundle: Path) -> None:
    """The one that fills the positions gives one token; the others are not affected."""
    prompts = [LONG, FULL, [4, 5], LONG]
    expected = load(bundle, threads=1).generate([FULL, [4, 5]])
    assert len(expected[0].tokens) == 1
    stdin = "".join(f"{line(prompt)}\n" for prompt in prompts).encode()
    outcome = dragoman("run", bundle, "--threads", 1, stdin=stdin)
    assert outcome.returncode == 1
    found = outcome.stdout.split("\n")
    assert found == ["", *(line([*result.tokens]) for result in expected), "", ""]
    assert outcome.stderr.splitlines() == [f"line 1: {TOO_LONG}", f"line 4: {TOO_LONG}"]


@pytest.mark.parametrize("options", [(), ("--beams", 3), ("--sample", "--seed", 1)], ids=str)
def test_one_prompt(options: tuple[object, ...], dragoman: Dragoman, bundle: Path) -> None:
    arguments = ("run", bundle, "--threads", 1, *options)
    outcome = dragoman(*arguments, line(FULL))
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert len(outcome.stdout.split()) == 1
    outcome = dragoman(*arguments, line(LONG))
    assert (outcome.returncode, outcome.stdout.strip()) == (1, "")
    assert outcome.stderr.splitlines() == [f"line 1: {TOO_LONG}"]


def test_streams(dragoman: Dragoman, bundle: Path) -> None:
    arguments = ("run", bundle, "--threads", 1, "--stream")
    assert len(dragoman(*arguments, line(FULL)).stdout.split()) == 1
    outcome = dragoman(*arguments, line(LONG))
    assert outcome.returncode == 1
    assert outcome.stderr.splitlines() == [f"line 1: {TOO_LONG}"]


def test_json(dragoman: Dragoman, bundle: Path) -> None:
    outcome = dragoman("run", bundle, "--threads", 1, "--json", line(FULL), line(LONG))
    full, long = (json.loads(each) for each in outcome.stdout.splitlines())
    assert outcome.returncode == 1
    assert len(full["tokens"]) == 1 and full["error"] is None
    assert (long["tokens"], long["finish_reason"], long["error"]) == ([], "rejected", TOO_LONG)
