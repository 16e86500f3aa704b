"""Verdicts, rows of parity and licences: what a report says besides what manifests record."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest

from dragoman.benchmarks.latency import source_lengths
from dragoman.reference_model.pretrained import find_checkpoint
from dragoman.runtime.format.model_spec import ModelSpec
from dragoman.runtime.format.parity import (
    BeamParity,
    Cosines,
    OnePassParity,
    RankParity,
    Ranks,
    VectorParity,
    describe_random,
)
from dragoman.verification.parity_rows import figure, parity_rows, rows_of_engines
from dragoman.verification.report.contents import counted
from dragoman.verification.report.gathering import licences_in, training_of
from dragoman.verification.report.page import parted
from dragoman.verification.verdict import describe_failure, verdict_of

from .conftest import parity

WHAT = "m in int8 for target cpu"


def test_a_passed_verdict() -> None:
    verdict = verdict_of(WHAT, "int8", parity(), "bundles/m")
    assert verdict.state == "passed"
    assert verdict.sentence == (
        "m in int8 for target cpu computes what the trained model computes, as far as int8 allows: "
        "97 of 100 greedy outputs are identical, distributions of the next token are 5.9e-5 nats "
        "apart on average (0.00029 are allowed), word error is 31.44% (the trained model's is "
        "31.27%), references have 0.2271 nats a token (to the trained model 0.2268) (compared on "
        "held_out.tsv, 100 lines)."
    )
    assert "as far as" not in verdict_of(WHAT, "fp32", parity(), "").sentence


def test_a_verdict_on_graphs_says_that_engines_were_not_run() -> None:
    verdict = verdict_of("m", "fp16", parity(), "bundles/m", unrun=True)
    assert verdict.state == "passed"
    assert verdict.sentence.endswith(
        "This holds for the graphs of its engines; the engines were not run."
    )


def test_limits_without_a_rounded_oracle_are_shown() -> None:
    """Engines are compared where there is no trained model to round."""
    found = parity()
    assert found.distributions is not None
    distributions = dataclasses.replace(found.distributions, rounded=None, passed=False)
    found = dataclasses.replace(found, passed=False, distributions=distributions)
    row = next(row for row in rows_of_engines(found) if "nats a token" in row.what)
    assert (row.what, row.allowed) == ("engines: distributions, nats a token", "0.00029")
    assert ", allowed 0.000292; a tolerance of" in describe_failure(found)


def test_a_failed_verdict_says_what_failed() -> None:
    found = parity(passed=False)
    verdict = verdict_of(WHAT, "int8", found, "bundles/m")
    assert verdict.state == "failed"
    assert verdict.sentence.endswith(
        "Greedy outputs: found 97 of 100 identical; largest margin lost 0.3 (held_out.tsv, line 7, "
        "step 2: token 3 for 27), allowed margins up to 2.1."
    )
    assert found.distributions is not None
    distributions = dataclasses.replace(found.distributions, passed=False)
    verdict = verdict_of(WHAT, "int8", dataclasses.replace(found, distributions=distributions), "")
    assert "Distributions, nats a token: found mean 5.9e-5 (" in verdict.sentence


def test_a_verdict_without_parity_says_how_to_get_one() -> None:
    verdict = verdict_of(WHAT, "int8", None, "bundles/m")
    assert verdict.state == "not verified"
    assert "run dragoman verify bundles/m CHECKPOINT" in verdict.sentence


@pytest.mark.parametrize(
    ("inputs", "random"),
    [
        (describe_random(64, 0, audio=False), True),
        (describe_random(4, 0, audio=True), True),
        ("64 random sources (seed 0)", True),  # as bundles have recorded it
        ("2 windows of random sound (seed 0)", True),
        ("4 beginnings of a sentence", True),
        ("my random words.txt, 8 lines", False),
        ("4 beginnings of a sentence, 8 lines", False),
        ("64 random sources (seed 0), 8 lines", False),
    ],
)
def test_random_inputs_are_named(inputs: str, random: bool) -> None:
    found = dataclasses.replace(parity(), inputs=inputs)
    sentence = verdict_of(WHAT, "int8", found, "").sentence
    assert ("which say nothing about quality" in sentence) == random


def test_a_row_for_each_comparison() -> None:
    found = dataclasses.replace(
        parity(),
        beams=BeamParity(4, 8, 7, 1, 1e-6, True, 1e-6, 1e-3),
        vectors=VectorParity(40, Cosines(0.999812, 0.9921), Cosines(0.9997, 0.99), 0.98, False),
        ranks=RankParity(40, 1560, Ranks(0.91234, 0.99876), Ranks(0.9, 0.99)),
    )
    rows = {check.what: check for check in parity_rows(found)}
    assert list(rows) == [
        "cross keys and values, the worst: cross_value_1",
        "logits",
        "distributions, nats a token",
        "the same most probable choice",
        "cosines of 40 embeddings",
        "order of 1,560 documents in 40 lists",
        "greedy outputs",
        "best of 4 beams",
        "word error",
        "nats a token of 41 references (held_out.tsv)",
    ]
    assert [check.state for check in rows.values()] == [
        *["passed"] * 4,
        *("failed", "stated"),
        *["passed"] * 4,
    ]
    assert rows["cosines of 40 embeddings"].found == "mean 0.999812, smallest 0.992100"
    order = rows["order of 1,560 documents in 40 lists"]
    assert order.found == "Kendall's tau 0.9123, NDCG@10 0.9988"
    assert order.allowed == "rounding alone 0.9000, 0.9900"
    assert rows["best of 4 beams"].found == (
        "7 of 8 identical, 1 as good; scores differ by 1e-6, from own scores by 1e-6"
    )
    assert rows["word error"].found == "31.44%, trained model 31.27%"


def test_a_tensor_that_fails_fails_its_row() -> None:
    """Also if another one is further off."""
    found = parity()
    first = dataclasses.replace(found.tensors[0], tolerance=1e-4, passed=False, positions_beyond=3)
    row = parity_rows(dataclasses.replace(found, tensors=(first, *found.tensors[1:])))[0]
    assert not row.passed and "more than allowed at 3 of 300 positions" in row.found


def test_what_parity_allows_of_tokens_and_decides_of_them() -> None:
    found = parity()
    one_pass = OnePassParity(100, 466, 0, 0.01, 0.2, None, 0.01, 1e-4, True)
    tokens = dataclasses.replace(
        found.tokens, one_pass=one_pass, expected_identical=98.0, least_identical=71
    )
    rows = {check.what: check for check in parity_rows(dataclasses.replace(found, tokens=tokens))}
    assert rows["greedy outputs"].allowed == "at least 71 identical, margins up to 2.1"
    own = rows["tokens of 100 outputs that the bundle's own scores choose"]
    assert (own.found, own.state) == (
        "466 of 466; log-probabilities 0.01 apart",
        "passed",
    )


def test_what_is_undecided_is_not_said_to_have_passed() -> None:
    found = parity()
    (task,) = found.tasks
    undecided = dataclasses.replace(
        found,
        tokens=dataclasses.replace(found.tokens, identical=0),
        beams=BeamParity(4, 8, 0, 0, 0.0, True, 0.0, 1e-3),
        tasks=(
            dataclasses.replace(task, allowed=0.001, pairs=80, undecided=True, more_inputs=900),
        ),
    )
    rows = {check.what: check for check in parity_rows(undecided)}
    for what in ("greedy outputs", "best of 4 beams", "word error of 80 texts"):
        assert rows[what].state == "undecided"
    assert rows["word error of 80 texts"].found.endswith("; about 900 more texts would decide")
    sentence = verdict_of(WHAT, "int8", undecided, "").sentence
    assert "none of 100 greedy outputs is identical, which rounding explains" in sentence
    assert "(the trained model's is 31.27%; too few texts to decide)" in sentence


def test_licences(tmp_path: Path) -> None:
    (tmp_path / "LICENSE-Words.txt").write_text("\n Words Licence \nmore\n", encoding="utf-8")
    (tmp_path / "COPYING").write_bytes(b"\xff free")
    (tmp_path / "licensed.bin").write_text("no")
    (tmp_path / "NOTICE").mkdir()
    (tmp_path / "README.md").write_text("---\ntags:\n- x\nlicense: 'cc-by-4.0'\n---\nlicense: no")
    found = licences_in(tmp_path, "checkpoint")
    assert [(licence.name, licence.summary) for licence in found] == [
        ("COPYING", "\ufffd free"),
        ("LICENSE-Words.txt", "Words Licence"),
        ("README.md", "cc-by-4.0"),
    ]
    data = (tmp_path / "LICENSE-Words.txt").read_bytes()
    assert found[1].sha256 == hashlib.sha256(data).hexdigest()
    assert found[1].text == data.decode() and found[2].text == ""
    (tmp_path / "README.md").write_text("# No front matter\nlicense: mit\n")
    assert [licence.name for licence in licences_in(tmp_path, "bundle")] == [
        *("COPYING", "LICENSE-Words.txt")
    ]


@pytest.mark.parametrize(
    ("sizes", "lengths"),
    [
        ({"max_source_positions": 512, "max_target_positions": 512}, [8, 32, 128]),
        ({"max_source_positions": 64, "max_target_positions": 64}, [8, 32, 64]),
        ({"max_source_positions": 5, "max_target_positions": 64}, [5]),
    ],
)
def test_lengths_that_are_measured(sizes: dict[str, int], lengths: list[int]) -> None:
    spec = ModelSpec(
        source_vocab_size=10,
        target_vocab_size=10,
        decoder_layers=1,
        num_heads=1,
        head_size=8,
        pad_token_id=0,
        start_token_id=1,
        end_token_id=2,
        **sizes,
    )
    assert source_lengths(spec) == lengths


@pytest.mark.parametrize(
    ("expected", "found", "parts"),
    [
        ("a b c", "a b d", ("a b ", "c", "d")),
        ("a b", "a b c", ("a b ", "", "c")),
        ("abc", "abd", ("", "abc", "abd")),
        ("", "x", ("", "", "x")),
        ("same", "same", ("same", "", "")),
    ],
)
def test_where_outputs_part(expected: str, found: str, parts: tuple[str, str, str]) -> None:
    made = parted(expected, found)
    assert (made.same.rstrip(), made.expected, made.found) == (parts[0].rstrip(), *parts[1:])


def test_figures() -> None:
    assert [figure(x) for x in (0.0, 5.93e-5, 0.031, 12.0, 4.57e-14, 1e300, 123456)] == [
        *("0", "5.9e-5", "0.031", "12", "4.6e-14", "1e300", "1.2e5")
    ]
    assert counted(1, "output") == "1 output" and counted(2000, "output") == "2,000 outputs"


@pytest.mark.parametrize("name", ["g2p-en", "bible-en-es", "verses-en"])
def test_records_of_trainings_before_are_read(name: str) -> None:
    checkpoint = find_checkpoint(name)
    found = training_of(checkpoint)
    assert found is not None and found.recipe == name
    record = json.loads((checkpoint / "recipe.json").read_text(encoding="utf-8"))
    assert found.options == record["training"]
    assert [*found.held_out] == [*record["held_out"]]


def test_corpora_and_unknown_characters_of_a_training(tmp_path: Path) -> None:
    corpus = {"files": ["a.en", "a.de"], "weight": 0.25, "prefix": "<BT>", "pairs": 1200}
    one, none = {"unknown": 3, "characters": 40}, {"unknown": 0, "characters": 9}
    record = {
        "recipe": "en-de",
        "training": {},
        "held_out": {"BLEU": 1.0},
        "data": {"train": 1200, "validation": 7, "dropped": {}, "corpora": [corpus]},
        "unknown characters": {"held_out": {"source": one, "target": none}},
    }
    (tmp_path / "recipe.json").write_text(json.dumps(record), encoding="utf-8")
    (tmp_path / "history.jsonl").touch()
    found = training_of(tmp_path)
    assert found is not None and found.pairs == {"train": 1200, "validation": 7}
    assert found.corpora == ("a.en and a.de: 1,200 pairs after cleaning, weight 0.25, prefix <BT>",)
    assert found.unknown == ("held out source: 3 of 40",)


@pytest.mark.parametrize("text", ["", "[]", '{"recipe": "x"}', '{"recipe": [], "held_out": {}}'])
def test_a_damaged_record_of_a_training_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "recipe.json").write_text(text, encoding="utf-8")
    assert training_of(tmp_path) is None
