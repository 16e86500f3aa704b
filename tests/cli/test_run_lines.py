"""`dragoman run`: a line out for each line in, whatever the lines are."""

from __future__ import annotations

import json
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

from dragoman.runtime import Model

Outcome = CompletedProcess[str]
Dragoman = Callable[..., Outcome]


def texts(model: Model, *words: str) -> list[str]:
    return [str(result.text) for result in model.generate(words)]


def test_arguments(run: Dragoman, model: Model) -> None:
    outcome = run("dragoman", "need", "a")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    lines = outcome.stdout.splitlines()
    assert lines == texts(model, "dragoman", "need", "a")
    assert len(set(lines)) == 3 and all(lines)


def test_standard_input(run: Dragoman, model: Model) -> None:
    outcome = run(stdin=b"dragoman\nneed\na\n")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert outcome.stdout.splitlines() == texts(model, "dragoman", "need", "a")


def test_empty_lines_stay_empty(run: Dragoman, model: Model) -> None:
    outcome = run(stdin=b"\ndragoman\n\n   \nneed\n\n")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    first, second = texts(model, "dragoman", "need")
    assert outcome.stdout == f"\n{first}\n\n\n{second}\n\n"


def test_the_last_line_needs_no_end(run: Dragoman, model: Model) -> None:
    assert run(stdin=b"need\ndragoman").stdout.splitlines() == texts(model, "need", "dragoman")


def test_lines_that_end_as_on_windows(run: Dragoman, model: Model) -> None:
    outcome = run(stdin=b"need\r\n\r\ndragoman\r\n")
    first, second = texts(model, "need", "dragoman")
    assert outcome.returncode == 0
    assert outcome.stdout == f"{first}\n\n{second}\n"


def test_no_input_gives_no_output(run: Dragoman) -> None:
    outcome = run(stdin=b"")
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "", "")


def test_bad_lines_are_reported_and_the_others_decoded(run: Dragoman, model: Model) -> None:
    lines = [b"need", b"na\xffve", b"dragoman", b"two words", b"x" * 1_000_000, b"", b"a"]
    outcome = run(stdin=b"\n".join(lines) + b"\n")
    need, dragoman, a = texts(model, "need", "dragoman", "a")
    assert outcome.returncode == 1
    assert outcome.stdout.splitlines() == [need, "", dragoman, "", "", "", a]
    assert outcome.stderr.splitlines() == [
        "line 2: expected UTF-8 text: invalid start byte at byte 2",
        "line 4: unknown to this model: ' '",
        "line 5: source has at least 2304 tokens, expected at most 32, the positions of this model",
    ]


def test_bad_arguments_are_reported_too(run: Dragoman, model: Model) -> None:
    outcome = run("need", "n3rd", "", "a")
    assert outcome.returncode == 1
    need, a = texts(model, "need", "a")
    assert outcome.stdout.splitlines() == [need, "", "", a]
    assert outcome.stderr == "line 2: unknown to this model: '3'\n"


def test_case_and_accents_are_the_tokenizers_business(run: Dragoman, model: Model) -> None:
    outcome = run(stdin="NEED\nnéed\n".encode())
    assert outcome.stdout.splitlines() == texts(model, "need", "need")


def test_stream_prints_the_same_as_generate(run: Dragoman, model: Model) -> None:
    lines = b"dragoman\n\nn3rd\nneed\n"
    outcome = run("--stream", stdin=lines)
    first, second = texts(model, "dragoman", "need")
    assert outcome.returncode == 1
    assert outcome.stdout == f"{first}\n\n\n{second}\n"
    assert outcome.stderr == "line 3: unknown to this model: '3'\n"


@pytest.mark.parametrize("size", [1, 2, 64])
def test_the_batch_size_changes_nothing(run: Dragoman, model: Model, size: int) -> None:
    words = ["dragoman", "transformer", "a", "encoder", "attention", "is", "all", "you", "need"]
    outcome = run("--batch-size", size, stdin="\n".join(words).encode())
    assert outcome.stdout.splitlines() == texts(model, *words)


def test_limits_on_new_tokens(run: Dragoman, model: Model) -> None:
    def lengths(*options: object) -> list[int]:
        lines = run("--json", *options, "dragoman", "a").stdout.splitlines()
        return [len(json.loads(line)["tokens"]) for line in lines]

    assert max(lengths("--max-new-tokens", 3)) == 3
    assert max(lengths("--max-new-tokens-per-source-token", 0.1)) == 1
    assert min(lengths("--min-new-tokens", 20)) >= 20
    assert lengths("--max-new-tokens", 24) == lengths()


@pytest.mark.parametrize("option", ["--source-language", "--target-language"])
def test_languages_of_a_model_that_has_none(run: Dragoman, option: str) -> None:
    outcome = run(option, "de", "dragoman")
    assert (outcome.returncode, outcome.stdout) == (2, "")
    assert f"{option}: expected none, this model has no languages, found 'de'" in outcome.stderr
