"""`dragoman run`: several outputs, scores, samples, prefixes and phrases, as in the library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from dragoman.runtime import Model, load

from .conftest import publish

Outcome = CompletedProcess[str]
Dragoman = Callable[..., Outcome]

WORDS = ["dragoman", "need", "a", "transformer", "encoder", "is", "all"]
SAMPLED = ("--sample", "--temperature", 1.5, "--top-k", 20, "--top-p", 0.9, "--min-p", 0.01)


def shown(model: Model, words: Sequence[str], **options: object) -> list[str]:
    """Every output of every word with its score."""
    results = model.generate(words, **options)  # type: ignore[arg-type]
    return [f"{h.score:.4f}\t{h.text}" for result in results for h in result.hypotheses]


def test_samples(run: Dragoman, model: Model) -> None:
    outcome = run(*SAMPLED, "--seed", 7, "--n-best", 3, "--scores", *WORDS)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    filters = {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "min_p": 0.01}
    expected = shown(model, WORDS, do_sample=True, seed=7, num_return_sequences=3, **filters)
    assert outcome.stdout.splitlines() == expected
    assert len(set(expected)) > 2 * len(WORDS)


def test_a_sample_depends_on_its_line_and_seed_alone(run: Dragoman) -> None:
    def sampled(seed: int, *words: str, size: int = 64, count: int = 1) -> list[str]:
        options = ("--seed", seed, "--batch-size", size, "--n-best", count)
        return run(*SAMPLED, *options, *words).stdout.splitlines()

    together = sampled(7, *WORDS)
    assert [sampled(7, word)[0] for word in WORDS] == together
    assert sampled(7, *WORDS, size=2) == together
    assert sampled(7, *WORDS, count=2)[::2] == together
    assert sampled(7, *reversed(WORDS)) == [*reversed(together)]
    assert sampled(8, *WORDS) != together


def test_without_a_seed_samples_differ(run: Dragoman) -> None:
    assert run(*SAMPLED, *WORDS).stdout != run(*SAMPLED, *WORDS).stdout


def test_every_line_has_its_place_among_several_outputs(run: Dragoman) -> None:
    options = ("--sample", "--seed", 1, "--n-best", 2)
    outcome = run(*options, stdin=b"need\n\nn3rd\n\xff\na\n")
    assert outcome.returncode == 1
    lines = outcome.stdout.split("\n")
    assert [bool(line) for line in lines] == [True] * 2 + [False] * 6 + [True] * 2 + [False]
    assert outcome.stderr.splitlines() == [
        "line 3: unknown to this model: '3'",
        "line 4: expected UTF-8 text: invalid start byte at byte 0",
    ]


def test_scores(run: Dragoman, model: Model) -> None:
    outcome = run("--scores", "need", "", "n3rd", "a")
    need, a = model.generate(["need", "a"])
    assert outcome.stdout.split("\n") == [
        f"{need.log_probability:.4f}\t{need.text}",
        "",
        "",
        f"{a.log_probability:.4f}\t{a.text}",
        "",
    ]


def test_a_prefix(run: Dragoman, model: Model) -> None:
    outcome = run("--prefix", "N IY", *WORDS)
    lines = outcome.stdout.splitlines()
    assert all(line.startswith("N IY ") for line in lines)
    assert lines == [result.text for result in model.generate(WORDS, prefix="N IY")]
    assert run("--prefix", "N IY", "--stream", *WORDS).stdout == outcome.stdout


def test_a_prefix_that_some_lines_have_no_room_for(run: Dragoman) -> None:
    relative = ("--max-new-tokens-per-source-token", 0.7)
    outcome = run("--prefix", "N IY", *relative, "need", "a", "all")
    assert outcome.returncode == 1
    assert [bool(line) for line in outcome.stdout.splitlines()] == [True, False, True]
    error = "prefix: expected fewer tokens than the limit of 2, found 2"
    assert outcome.stderr == f"line 2: {error}\n"


def test_phrases_that_must_not_occur(run: Dragoman, model: Model) -> None:
    plain = run(*WORDS).stdout.splitlines()
    first, second = plain[0].split()[0], " ".join(plain[1].split()[:2])
    forbidden = ("--must-not-contain", first, "--must-not-contain", second)
    outcome = run(*forbidden, *WORDS)
    lines = outcome.stdout.splitlines()
    assert lines != plain
    assert not any(f" {phrase} " in f" {line} " for line in lines for phrase in (first, second))
    expected = model.generate(WORDS, must_not_contain=[first, second])
    assert lines == [result.text for result in expected]


def test_token_ids(dragoman: Dragoman, token_bundle: Path) -> None:
    options = ("--prefix", "7 8", "--must-not-contain", " 16 ", "--must-not-contain", "3 3")
    outcome = dragoman("run", token_bundle, "--threads", 1, *options, "3 4 5 2")
    with load(token_bundle, threads=1) as model:
        (expected,) = model.generate([[3, 4, 5, 2]], prefix=[7, 8], must_not_contain=[[16], [3, 3]])
    assert outcome.stdout == " ".join(map(str, expected.tokens)) + "\n"
    assert expected.tokens[:2] == (7, 8) and 16 not in expected.tokens


@pytest.mark.parametrize("option", ["--prefix", "--must-not-contain", "--must-contain"])
def test_texts_for_a_bundle_that_takes_token_ids(
    dragoman: Dragoman, token_bundle: Path, option: str
) -> None:
    outcome = dragoman("run", token_bundle, option, "N IY", "3 4")
    assert (outcome.returncode, outcome.stdout) == (2, "")
    assert outcome.stderr == (
        f"Error: {option}: expected token ids separated by spaces, found 'N IY': this bundle has "
        "no tokenizers\n"
    )


def test_a_bundle_that_samples_by_default(
    dragoman: Dragoman, run: Dragoman, bundle_copy: Path
) -> None:
    publish(bundle_copy, do_sample=True, temperature=2.0, top_k=30)

    def lines(*options: object) -> list[str]:
        return dragoman("run", bundle_copy, *options, *WORDS).stdout.splitlines()

    assert lines("--seed", 3) == lines("--seed", 3, "--sample", "--temperature", 2, "--top-k", 30)
    assert lines("--seed", 3) != lines("--seed", 3, "--temperature", 1)
    assert lines("--no-sample") == run(*WORDS).stdout.splitlines()
