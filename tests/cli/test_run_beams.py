"""`dragoman run` with beams, asked for or the bundle's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from dragoman.runtime import Model
from dragoman.runtime.format.generation_settings import EarlyStopping

from .conftest import publish
from .test_run_decoding import WORDS, shown
from .test_user_mistakes import error_of

Outcome = CompletedProcess[str]
Dragoman = Callable[..., Outcome]


@pytest.mark.parametrize(("word", "early_stopping"), [("true", True), ("never", "never")])
def test_the_best_outputs_with_their_scores(
    run: Dragoman, model: Model, word: str, early_stopping: EarlyStopping
) -> None:
    options = ("--beams", 4, "--length-penalty", 0.6, "--early-stopping", word)
    outcome = run(*options, "--n-best", 3, "--scores", *WORDS)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    lines = outcome.stdout.splitlines()
    beams = {"num_beams": 4, "length_penalty": 0.6, "early_stopping": early_stopping}
    assert lines == shown(model, WORDS, num_return_sequences=3, **beams)
    assert run(*options, *WORDS).stdout.splitlines() == [
        line.partition("\t")[2] for line in lines[::3]
    ]


@pytest.mark.parametrize("size", [1, 5, 8])
def test_the_batch_size_counts_sequences_and_changes_nothing(run: Dragoman, size: int) -> None:
    beams = ("--beams", 4, "--scores", *WORDS)
    assert run(*beams, "--batch-size", size).stdout == run(*beams).stdout


def test_json(run: Dragoman) -> None:
    options = ("--beams", 4, "--n-best", 4, "--length-penalty", 2, "--alternatives", 2)
    (found,) = [json.loads(run("--json", *options, "need").stdout)]
    hypotheses = found["hypotheses"]
    scores = [hypothesis["score"] for hypothesis in hypotheses]
    assert len(scores) == 4 and scores == sorted(scores, reverse=True)
    assert found | {"hypotheses": None} == {
        "error": None,
        "hypotheses": None,
        **{key: hypotheses[0][key] for key in found if key in hypotheses[0]},
    }
    for hypothesis in hypotheses:
        length = len(hypothesis["token_log_probabilities"])
        assert length == len(hypothesis["tokens"]) + (hypothesis["end_token"] is not None)
        assert len(hypothesis["alternatives"]) == length
        total = hypothesis["log_probability"]
        assert total == pytest.approx(sum(hypothesis["token_log_probabilities"]))
        assert hypothesis["score"] == pytest.approx(total / length**2, abs=1e-6)


def test_phrases_that_must_occur(run: Dragoman, model: Model) -> None:
    options = ("--beams", 4, "--n-best", 2, "--must-contain", "N IY D", "--must-contain", "ZH")
    outcome = run(*options, "--scores", *WORDS)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    lines = outcome.stdout.splitlines()
    assert all("N IY D" in line and "ZH" in line for line in lines)
    assert lines == shown(
        model, WORDS, num_beams=4, num_return_sequences=2, must_contain=["N IY D", "ZH"]
    )


def test_lines_without_an_output_keep_their_places(run: Dragoman) -> None:
    phrase = ("--must-contain", "N IY D", "--max-new-tokens-per-source-token", 1)
    outcome = run("--beams", 2, "--n-best", 2, *phrase, "need", "a", "all")
    assert outcome.returncode == 1
    assert [bool(line) for line in outcome.stdout.splitlines()] == [True] * 2 + [False] * 2 + [
        True
    ] * 2
    error = "must_contain: expected at most 2 tokens, what the limit leaves, found 3"
    assert outcome.stderr == f"line 2: {error}\n"


def test_a_bundle_with_beams_of_its_own(
    dragoman: Dragoman, run: Dragoman, bundle_copy: Path
) -> None:
    publish(bundle_copy, num_beams=3, length_penalty=0.2, early_stopping=True)

    def lines(*options: object) -> list[str]:
        outcome = dragoman("run", bundle_copy, "--threads", 1, *options, "--scores", *WORDS)
        assert (outcome.returncode, outcome.stderr) == (0, "")
        return outcome.stdout.splitlines()

    own = ("--beams", 3, "--length-penalty", 0.2, "--early-stopping", "true")
    greedy = run("--scores", *WORDS).stdout.splitlines()
    assert lines() == run(*own, "--scores", *WORDS).stdout.splitlines() != greedy
    assert lines("--beams", 1) == greedy
    assert len(lines("--n-best", 3)) == 3 * len(WORDS)


def test_tokens_of_beams_are_not_final_until_the_end(
    dragoman: Dragoman, run: Dragoman, bundle_copy: Path
) -> None:
    message = (
        "--stream: expected --beams 1, found {} beams, whose tokens are not final until the end"
    )
    assert error_of(run("--stream", "--beams", 2, "need")) == f"Error: {message.format(2)}"
    publish(bundle_copy, num_beams=3)
    own = dragoman("run", bundle_copy, "--stream", "need")
    assert error_of(own) == f"Error: {message.format(3)}"
    one = dragoman("run", bundle_copy, "--stream", "--beams", 1, "need")
    assert (one.returncode, one.stdout) == (0, run("need").stdout)


def test_options_that_contradict_the_beams_of_a_bundle(
    dragoman: Dragoman, bundle_copy: Path
) -> None:
    publish(bundle_copy, num_beams=3)
    asked = dragoman("run", bundle_copy, "--n-best", 4, "need")
    assert error_of(asked) == "Error: --n-best: expected at most --beams 3, found 4"
    asked = dragoman("run", bundle_copy, "--temperature", 0.5, "need")
    assert error_of(asked) == "Error: --temperature: for sampling: set --sample, or leave it out"
    sampled = dragoman("run", bundle_copy, "--sample", "--seed", 1, "need")
    assert (sampled.returncode, sampled.stderr) == (0, "")
