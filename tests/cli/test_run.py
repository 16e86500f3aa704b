"""`dragoman run`: lines in, lines or JSON objects out, with texts or token ids."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from dragoman.runtime import Hypothesis, Model, load

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
        "line 5: source has at least 2304 tokens, expected at most 32, the positions of this "
        "model; truncate=True (--truncate) cuts it",
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


PAGE = Path(__file__).parents[2] / "docs" / "guides" / "decoding.md"


def objects(outcome: CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in outcome.stdout.splitlines()]


def as_object(hypothesis: Hypothesis) -> dict[str, Any]:
    """A hypothesis of the library in the keys of JSON."""
    return {
        "text": hypothesis.text,
        "tokens": list(hypothesis.tokens),
        "log_probability": hypothesis.log_probability,
        "score": hypothesis.score,
        "finish_reason": hypothesis.finish_reason,
        "end_token": hypothesis.end_token,
        "token_log_probabilities": list(hypothesis.token_log_probabilities),
        "alternatives": [[vars(a) for a in best] for best in hypothesis.alternatives],
    }


def documented(heading: str) -> list[str]:
    """The keys in the first table after a heading of the page."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n{heading}\n")[2]
    table = section.partition("| --- |")[2].partition("\n\n")[0]
    return re.findall(r"^\| `(\w+)`", table, re.MULTILINE)


def test_an_object_for_each_line(run: Dragoman, model: Model) -> None:
    outcome = run("--json", stdin=b"need\n\nna\xffve\n")
    assert outcome.returncode == 1
    need, empty, bad = objects(outcome)
    (expected,) = model.generate(["need"])
    (hypothesis,) = expected.hypotheses
    assert need == {
        "text": expected.text,
        "tokens": list(expected.tokens),
        "log_probability": expected.log_probability,
        "score": expected.score,
        "finish_reason": expected.finish_reason,
        "end_token": expected.end_token,
        "error": None,
        "truncated": False,
        "hypotheses": [as_object(hypothesis)],
    }
    nothing = {"text": "", "tokens": [], "log_probability": 0.0, "score": 0.0, "end_token": None}
    nothing["truncated"] = False
    assert empty == nothing | {"finish_reason": "empty", "error": None, "hypotheses": []}
    error = "expected UTF-8 text: invalid start byte at byte 2"
    assert bad == nothing | {"finish_reason": "rejected", "error": error, "hypotheses": []}
    assert outcome.stderr == f"line 3: {error}\n"


def test_alternatives(run: Dragoman, model: Model) -> None:
    options = ("--alternatives", 3, "--prefix", "N", "--max-new-tokens", 4)
    (found,) = objects(run("--json", *options, "need"))
    (expected,) = model.generate(["need"], alternatives=3, prefix="N", max_new_tokens=4)
    assert found["hypotheses"] == [as_object(hypothesis) for hypothesis in expected.hypotheses]
    given, *chosen = found["hypotheses"][0]["alternatives"]
    assert given == [] and [len(best) for best in chosen] == [3] * 3
    assert [best[0]["token"] for best in chosen] == found["tokens"][1:]


def test_several_outputs(run: Dragoman, model: Model) -> None:
    options = ("--sample", "--seed", 5, "--n-best", 2, "--scores")
    found = objects(run("--json", *options, "need", "a"))
    expected = model.generate(["need", "a"], do_sample=True, seed=5, num_return_sequences=2)
    assert [each["hypotheses"] for each in found] == [
        [as_object(hypothesis) for hypothesis in result.hypotheses] for result in expected
    ]


@pytest.mark.parametrize("words", [("need",), ("",), ("n3rd",)])
def test_keys_are_in_the_order_of_the_documentation(run: Dragoman, words: tuple[str]) -> None:
    (found,) = objects(run("--json", "--alternatives", 2, *words))
    keys = documented("### The object of a line")
    of_speech = ("language", "language_probability", "segments", "warnings")
    assert [*found] == [key for key in keys if key not in of_speech]
    for hypothesis in found["hypotheses"]:
        assert [*hypothesis] == documented("### A hypothesis")
        assert [*hypothesis["alternatives"][0][0]] == documented("### An alternative")


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


def test_the_extra_is_named(
    dragoman: Dragoman, monkeypatch: pytest.MonkeyPatch, bundle: Path, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    outcome = dragoman("run-file", bundle, tmp_path / "in", "-o", tmp_path / "out")
    assert outcome.returncode == 2
    assert outcome.stderr == "Error: this needs the package ray: pip install 'dragoman[ray]'\n"


def test_special_tokens_in_texts(run: Dragoman, model: Model) -> None:
    text = "ab</s>c"
    outcome = run(text, "--keep-special-tokens")
    (expected,) = model.generate([text], skip_special_tokens=False)
    assert outcome.stdout == f"{expected.text}\n" and expected.error is None
    outcome = run(text, "--split-special-tokens")
    assert (outcome.returncode, outcome.stdout) == (1, "\n")
    assert "unknown to this model: '<'" in outcome.stderr
