"""`dragoman run`: beams, samples, prefixes and phrases, as in the library; and what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from dragoman.runtime import Model, load
from dragoman.settings.generation_settings import EarlyStopping

from .conftest import publish
from .test_user_mistakes import error_of

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


def test_a_file_of_prefixes(run: Dragoman, model: Model, tmp_path: Path) -> None:
    """A line for each source; a blank line is no prefix, and a bad one rejects its source only."""
    file = tmp_path / "prefixes"
    file.write_bytes(b"N IY\n\n  \r\nxyz\n\xff\nD\n")
    words = WORDS[:6]
    outcome = run("--prefix-file", file, stdin="\n".join(words).encode())
    prefixes: list[Any] = ["N IY", None, None, "", "", "D"]
    expected = [
        "" if prefix == "" else model.generate([word], prefix=prefix)[0].text
        for word, prefix in zip(words, prefixes, strict=True)
    ]
    assert outcome.stdout.splitlines() == expected
    assert outcome.returncode == 1
    assert outcome.stderr.splitlines() == [
        "line 4: prefix: unknown to this model: 'xyz', found 'xyz'",
        "line 5: prefix: expected UTF-8 text: invalid start byte at byte 0",
    ]
    assert run("--prefix-file", file, "--stream", *words).stdout == outcome.stdout
    beams = run("--prefix-file", file, "--beams", 2, "--json", *words)
    texts = [json.loads(line)["text"] for line in beams.stdout.splitlines()]
    assert texts[0].startswith("N IY") and texts[5].startswith("D")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("N IY\n", "--prefix-file: expected a line for each source, found 1 for more"),
        ("N\n" * 3, "--prefix-file: expected a line for each of 2 sources, found more"),
    ],
)
def test_another_number_of_prefixes(
    run: Dragoman, tmp_path: Path, lines: str, message: str
) -> None:
    file = tmp_path / "prefixes"
    file.write_text(lines)
    for outcome in (
        run("--prefix-file", file, "need", "a"),
        run("--prefix-file", file, stdin=b"need\na\n"),
    ):
        assert outcome.returncode == 2
        assert outcome.stderr == f"Error: {message}\n"


def test_where_prefixes_come_from(run: Dragoman, tmp_path: Path) -> None:
    both = run("--prefix", "N", "--prefix-file", __file__, "need")
    assert error_of(both) == "Error: --prefix and --prefix-file exclude each other"
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor() as pool:
        written = pool.submit((tmp_path / "pipe").write_text, "N IY\n")
        pipe = run("--prefix-file", tmp_path / "pipe", "need")
        assert written.result()
    assert (pipe.returncode, pipe.stderr) == (0, "")
    assert pipe.stdout.startswith("N IY")
    directory = run("--prefix-file", tmp_path, "need")
    assert error_of(directory) == (
        f"Error: --prefix-file: expected a file of lines, found a directory: {tmp_path}"
    )
    none = run("--prefix-file", tmp_path / "none", "need")
    assert error_of(none) == (
        f"Error: --prefix-file: expected a file of lines, found none: {tmp_path / 'none'}"
    )


def test_end_tokens(run: Dragoman, model: Model) -> None:
    """As the vocabulary spells them, or their ids."""
    plain = run(*WORDS).stdout.splitlines()
    symbol = plain[0].split()[1]
    token = next(t for t in range(42) if model.token_text(t) == symbol)
    expected = [r.text for r in model.generate(WORDS, end_token_id=token)]
    for end in (symbol, token):
        assert run("--end-token", end, *WORDS).stdout.splitlines() == expected
    assert expected[0] == plain[0].split()[0]
    (last,) = model.manifest.end_tokens
    both = run("--end-token", symbol, "--end-token", last, *WORDS).stdout.splitlines()
    assert both == [r.text for r in model.generate(WORDS, end_token_id=[token, last])]
    assert run("--end-token", symbol, "--stream", *WORDS).stdout.splitlines() == expected
    assert error_of(run("--end-token", "none", "need")) == (
        "Error: --end-token: expected a token of the vocabulary or an id in [0, 42), found 'none'"
    )


def test_rules(run: Dragoman, model: Model) -> None:
    rules = ("--repetition-penalty", 3, "--no-repeat-ngram-size", 1, "--renormalize-logits")
    options = {"repetition_penalty": 3, "no_repeat_ngram_size": 1, "renormalize_logits": True}
    assert run(*rules, "--scores", *WORDS).stdout.splitlines() == shown(model, WORDS, **options)
    beams = ("--beams", 2, "--min-new-tokens", 3, "--scores", *WORDS)
    usual, renormalized = run(*beams).stdout, run("--renormalize-logits", *beams).stdout
    assert usual != renormalized
    expected = {"num_beams": 2, "min_new_tokens": 3, "renormalize_logits": True}
    assert renormalized.splitlines() == shown(model, WORDS, **expected)


def test_long_sources_are_cut(run: Dragoman, model: Model) -> None:
    long = "dragoman" * 9
    outcome = run("--truncate", "need", long)
    results = model.generate(["need", long], truncate=True)
    assert outcome.stdout.splitlines() == [result.text for result in results]
    assert (outcome.returncode, outcome.stderr) == (0, "line 2: the source was truncated\n")
    (found,) = [json.loads(run("--truncate", "--json", long).stdout)]
    assert found["truncated"] is True
    streamed = run("--truncate", "--stream", "need", long)
    assert (streamed.stdout, streamed.stderr) == (outcome.stdout, outcome.stderr)
    assert run("--stream", "need", "--truncate").stderr == ""


def test_options_without_an_effect(run: Dragoman) -> None:
    plain = run(*WORDS).stdout
    neutral = ("--beams", 1, "--length-penalty", 1, "--top-p", 1)
    assert run(*neutral, *WORDS).stdout == plain
    assert run("--sample", "--temperature", 0, "--seed", 3, *WORDS).stdout == plain


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
        "truncated": False,
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


MISTAKES = {
    "--beams 0": "Invalid value for '--beams': 0 is not in the range x>=1.",
    "--beams many": "Invalid value for '--beams': 'many' is not a valid integer range.",
    "--beams 43": "--beams: expected at most 42, the vocabulary, found 43",
    "--n-best 0": "Invalid value for '--n-best': 0 is not in the range x>=1.",
    "--n-best 3": "--n-best: expected at most --beams 1, found 3: greedy search finds one",
    "--beams 1 --n-best 2": (
        "--n-best: expected at most --beams 1, found 2: greedy search finds one"
    ),
    "--length-penalty 0.6": "--length-penalty: for beam search: set --beams, or leave it out",
    "--length-penalty inf": "--length-penalty: expected a number from -50 to 50, found inf",
    "--early-stopping maybe": (
        "Invalid value for '--early-stopping': 'maybe' is not one of 'true', 'false', 'never'."
    ),
    "--early-stopping never": "--early-stopping: for beam search: set --beams, or leave it out",
    "--sample --beams 4": "--beams: expected 1, or no --sample, found 4 with --sample",
    "--temperature -1": "Invalid value for '--temperature': -1.0 is not in the range x>=0.",
    "--sample --temperature nan": "--temperature: expected a number in [0, inf), found nan",
    "--temperature 0.8": "--temperature: for sampling: set --sample, or leave it out",
    "--top-k 5 --seed 3": "--top-k, --seed: for sampling: set --sample, or leave it out",
    "--top-k -1": "Invalid value for '--top-k': -1 is not in the range x>=0.",
    "--top-p 0": "Invalid value for '--top-p': 0.0 is not in the range 0<x<=1.",
    "--top-p 1.5": "Invalid value for '--top-p': 1.5 is not in the range 0<x<=1.",
    "--min-p -0.1": "Invalid value for '--min-p': -0.1 is not in the range 0<=x<=1.",
    "--sample --seed -1": (
        "--seed: expected an integer of at least 0 and of at most 64 bits, found -1"
    ),
    "--prefix 5": "--prefix: unknown to this model: '5', found '5'",
    "--must-contain N": "--must-contain: expected --beams of more than 1: it needs beam search",
    "--must-contain N --must-not-contain N": "--must-contain: 'N' is in --must-not-contain, too",
    "--prefix N_N --must-not-contain N": "--prefix: 'N N' has a phrase of --must-not-contain",
    "--beams 2 --must-contain N_IY --must-not-contain IY": (
        "--must-contain: 'N IY' has a phrase of --must-not-contain"
    ),
    "--beams 2 --must-contain n": "--must-contain: unknown to this model: 'n', found 'n'",
    "--min-new-tokens 5 --max-new-tokens 3": (
        "--min-new-tokens: expected at most --max-new-tokens 3, found 5"
    ),
    "--alternatives 2": "--alternatives: expected with --json, which has a place for them",
    "--alternatives 43 --json": "--alternatives: expected at most 42, the vocabulary, found 43",
    "--stream --json": "--stream and --json exclude each other",
    "--stream --scores": "--stream and --scores exclude each other",
    "--stream --sample --n-best 2": "--stream and --n-best exclude each other",
    "--stream --timestamps": "--stream and --timestamps exclude each other",
    "--stream --fallback": "--stream and --fallback exclude each other",
}


@pytest.mark.parametrize("options", MISTAKES)
def test_options_that_cannot_be_had(run: Dragoman, options: str) -> None:
    words = [word.replace("_", " ") for word in options.split()]
    assert error_of(run(*words)) == f"Error: {MISTAKES[options]}"
