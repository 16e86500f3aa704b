"""`dragoman run --json`: an object for each line, with the keys that the documentation has."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from dragoman.runtime import Hypothesis, Model

Dragoman = Callable[..., CompletedProcess[str]]

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
        "hypotheses": [as_object(hypothesis)],
    }
    nothing = {"text": "", "tokens": [], "log_probability": 0.0, "score": 0.0, "end_token": None}
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
    assert [*found] == [key for key in keys if key not in ("language", "segments")]
    for hypothesis in found["hypotheses"]:
        assert [*hypothesis] == documented("### A hypothesis")
        assert [*hypothesis["alternatives"][0][0]] == documented("### An alternative")
