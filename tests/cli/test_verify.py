"""`dragoman verify`: the figures, the verdict, and the record of both in the manifest."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from dragoman.runtime import load, read_bundle
from dragoman.runtime.format.bundle import read_known_answers
from dragoman.runtime.format.known_answers import KNOWN_ANSWERS_FILE
from dragoman.runtime.format.parity import Parity
from dragoman.runtime.format.writing import write_manifest
from dragoman.verification import tolerances

from ..bundle_files import record_again
from .conftest import WORDS

Outcome = CompletedProcess[str]
Dragoman = Callable[..., Outcome]


@pytest.fixture
def unverified(bundle_copy: Path) -> Path:
    manifest = read_bundle(bundle_copy).manifest
    write_manifest(dataclasses.replace(manifest, parity=None), bundle_copy)
    return bundle_copy


def record(bundle: Path) -> Parity | None:
    return read_bundle(bundle).manifest.parity


def test_figures_are_shown_and_recorded(
    dragoman: Dragoman, unverified: Path, checkpoint: Path
) -> None:
    outcome = dragoman("verify", unverified, checkpoint, "--threads", 1)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert "9 of 9 identical" in outcome.stdout
    parity = record(unverified)
    assert parity is not None and parity.passed
    assert parity.inputs == "held_out.tsv, 9 lines"
    assert parity.backend == "onnxruntime"


def test_no_record_writes_nothing(dragoman: Dragoman, unverified: Path, checkpoint: Path) -> None:
    assert dragoman("verify", unverified, checkpoint, "--no-record").returncode == 0
    assert record(unverified) is None


def test_a_failure_is_recorded_and_exits_with_1(
    dragoman: Dragoman, unverified: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tolerances.TOLERANCES, "fp32", 0.0)
    outcome = dragoman("verify", unverified, checkpoint)
    assert outcome.returncode == 1
    (line,) = outcome.stderr.splitlines()
    assert line.startswith("Error: parity failed: ")
    parity = record(unverified)
    assert parity is not None and not parity.passed


def test_another_model_of_the_same_shape_fails(
    dragoman: Dragoman, unverified: Path, checkpoint: Path, tmp_path: Path
) -> None:
    import shutil

    from safetensors.torch import load_file, save_file

    other = Path(shutil.copytree(checkpoint, tmp_path / "other"))
    weights = copy.deepcopy(load_file(other / "model.safetensors"))
    weights["decoder.layers.0.cross_attention.key.bias"] += 0.01
    save_file(weights, other / "model.safetensors")
    outcome = dragoman("verify", unverified, other)
    assert outcome.returncode == 1
    (line,) = outcome.stderr.splitlines()
    weight = "decoder.layers.0.cross_attention.key.bias"
    assert line.startswith(f"Error: parity failed: weights: {weight}[")
    first = "; the first tensor to differ by more than 0.0001: encoder, linear_"
    assert first in line
    assert "(Add of decoder.layers.0.cross_attention.key)" in line


def test_a_model_without_inputs_is_compared_on_random_tokens(
    dragoman: Dragoman, unverified: Path, token_checkpoint: Path
) -> None:
    outcome = dragoman("verify", unverified, token_checkpoint, "--limit", 5, "--record")
    assert outcome.returncode == 0, outcome.stderr
    parity = record(unverified)
    assert parity is not None and parity.inputs == "5 random sources (seed 0)"


def test_part_of_the_inputs_does_not_replace_the_record(
    dragoman: Dragoman, unverified: Path, token_checkpoint: Path
) -> None:
    assert dragoman("verify", unverified, token_checkpoint, "--limit", 5).returncode == 0
    assert record(unverified) is None


def test_a_place_that_cannot_be_written(
    spawn: Callable[..., Outcome], unverified: Path, checkpoint: Path
) -> None:
    """Also for root: the new process drops the right to write everywhere."""
    prelude = """
import ctypes, os
ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE
os.execv(sys.executable, [sys.executable, "-m", "dragoman", *sys.argv[1:]])
"""
    before = (unverified / "manifest.json").read_bytes()
    unverified.chmod(0o555)
    try:
        outcome = spawn("verify", unverified, checkpoint, prelude=prelude)
    finally:
        unverified.chmod(0o755)
    assert outcome.returncode == 2
    assert "9 of 9 identical" in outcome.stdout  # the figures are not lost
    (line,) = outcome.stderr.splitlines()
    assert line == f"Error: cannot write {unverified / 'manifest.json'}: Permission denied"
    assert (unverified / "manifest.json").read_bytes() == before


def references_file(directory: Path, *lines: str) -> Path:
    file = directory / "references.tsv"
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def test_references_are_shown_recorded_and_inspected(
    dragoman: Dragoman, unverified: Path, checkpoint: Path, tmp_path: Path
) -> None:
    file = references_file(tmp_path, "dragoman\tD R AE G AH M AH N", "need\tN IY D\tN")
    outcome = dragoman("verify", unverified, checkpoint, "--references", file)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert "nats a token of 3 references" in " ".join(outcome.stdout.replace("│", " ").split())
    parity = record(unverified)
    assert parity is not None and parity.references is not None
    found = parity.references
    assert (found.references, found.pairs, found.tokens) == ("references.tsv", 3, 9 + 4 + 2)
    assert found.bundle == pytest.approx(found.oracle, abs=1e-4) and found.passed
    shown = " ".join(dragoman("inspect", unverified).stdout.split())
    assert f"nats a token of 3 references (references.tsv): {found.bundle:.4f}, trained" in shown


def test_inputs_with_references_are_references(
    dragoman: Dragoman, unverified: Path, checkpoint: Path
) -> None:
    assert dragoman("verify", unverified, checkpoint).returncode == 0
    parity = record(unverified)
    assert parity is not None and parity.references is not None
    assert (parity.references.references, parity.references.pairs) == ("held_out.tsv", 18)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("need", ": expected 9 references, one for each input of "),
        ("need\tN\nneed", ", line 2: expected a source, a tab and a reference, found no tab"),
        ("need\tN D4", ", line 1: target: unknown to this model: 'D4'"),
        (None, "expected a file of references, found none at "),
    ],
)
def test_bad_references_are_one_line(
    dragoman: Dragoman,
    unverified: Path,
    checkpoint: Path,
    tmp_path: Path,
    line: str | None,
    message: str,
) -> None:
    file = tmp_path if line is None else references_file(tmp_path, line)
    outcome = dragoman("verify", unverified, checkpoint, "--references", file)
    assert outcome.returncode == 2
    (shown,) = outcome.stderr.splitlines()
    assert message in shown
    assert record(unverified) is None


def test_metrics_judge_what_references_there_are(
    dragoman: Dragoman, unverified: Path, checkpoint: Path
) -> None:
    """The recipe's own score is the default: here two other ones, in the order they are named."""
    metrics = ("--metric", "chrf", "--metric", "perplexity", "--metric", "exact-match")
    outcome = dragoman("verify", unverified, checkpoint, *metrics)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    parity = record(unverified)
    assert parity is not None and parity.references is not None
    assert [task.metric for task in parity.tasks] == ["chrF", "exact match"]
    assert all(task.bundle == task.oracle and task.pairs == 9 for task in parity.tasks)
    shown = " ".join(outcome.stdout.replace("│", " ").split())
    assert f"chrF of 9 texts {parity.tasks[0].bundle:.2f}, trained model" in shown
    assert f"perplexity {math.exp(parity.references.bundle):.4g}, trained model" in shown


def test_a_bundle_with_worse_outputs_fails_its_task(
    dragoman: Dragoman,
    unverified: Path,
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the oracle writes is right, as far as a target may be long; of the bundle all but two
    tokens are lost."""
    from dragoman.verification.checks.tokens import bundle_outputs as real

    texts = load(unverified, threads=1).generate(WORDS)
    right = [" ".join((result.text or "").split()[:22]) for result in texts]
    pairs = [f"{word}\t{text}" for word, text in zip(WORDS, right, strict=True)]
    file = references_file(tmp_path, *pairs)

    def shorter(*arguments: Any) -> list[list[int]]:
        return [row[:2] for row in real(*arguments)]

    monkeypatch.setattr("dragoman.verification.parity.bundle_outputs", shorter)
    options = ("--references", file, "--metric", "bleu")
    outcome = dragoman("verify", unverified, checkpoint, *options)
    assert outcome.returncode == 1
    parity = record(unverified)
    assert parity is not None and not parity.passed
    (task,) = parity.tasks
    assert task.higher_is_better and not task.passed
    assert task.bundle < 10 < 80 < task.oracle
    assert task.chance is not None and task.chance < 0.05
    rows = [line for line in outcome.stdout.splitlines() if "failed" in line]
    assert any("BLEU" in row for row in rows)
    # Divergences are named by line, and say what was written.
    (line,) = outcome.stderr.splitlines()
    assert " sequences differ; the worst, references.tsv, line " in line
    for divergence in parity.tokens.divergences:
        word = WORDS[divergence.input]
        assert divergence.origin == f"references.tsv, line {divergence.input + 1}"
        assert divergence.source == word
        assert divergence.expected == texts[divergence.input].text != divergence.found


def test_only_the_worst_divergences_keep_their_texts(
    dragoman: Dragoman,
    unverified: Path,
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dragoman.verification.checks.tokens import bundle_outputs as real

    def other(*arguments: Any) -> list[list[int]]:
        return [[3 + (row[0] - 2) % 39, *row[1:]] for row in real(*arguments)]

    monkeypatch.setattr("dragoman.verification.parity.bundle_outputs", other)
    monkeypatch.setattr("dragoman.verification.parity.WITH_TEXTS", 4)
    monkeypatch.setattr("dragoman.verification.parity.MOST_CHARACTERS", 3)
    assert dragoman("verify", unverified, checkpoint).returncode == 1
    parity = record(unverified)
    assert parity is not None
    divergences = sorted(parity.tokens.divergences, key=lambda d: -d.margin)
    assert len(divergences) == 9
    assert [d.source is not None for d in divergences] == [True] * 4 + [False] * 5
    assert [d.found is not None for d in divergences] == [True] * 4 + [False] * 5
    assert all(d.origin.startswith("held_out.tsv, line ") for d in divergences)
    assert {len(d.expected) for d in divergences if d.expected} == {3}


@pytest.fixture
def damaged(bundle_copy: Path) -> Path:
    """A bundle one of whose known answers is another one, behind right hashes."""
    file = bundle_copy / KNOWN_ANSWERS_FILE
    known = json.loads(file.read_bytes())
    answer = next(a for a in known["answers"] if a["at_load"] and len(a["tokens"]) > 1)
    answer["log_probabilities"][0] -= 1
    file.write_text(json.dumps(known))
    record_again(bundle_copy)
    return bundle_copy


def test_known_answers_need_no_checkpoint(dragoman: Dragoman, bundle: Path) -> None:
    known = read_known_answers(read_bundle(bundle))
    assert known is not None
    outcome = dragoman("verify", bundle, "--threads", 1)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert outcome.stdout.count("passed") == 4 * len(known.answers)
    shown = dragoman("inspect", bundle).stdout
    assert f"{len(known.answers)}, {len(known.at_load)} of them at load" in shown
    assert "passed on this machine" in shown


def test_a_known_answer_that_differs_exits_with_1(dragoman: Dragoman, damaged: Path) -> None:
    outcome = dragoman("verify", damaged, "--threads", 1)
    assert outcome.returncode == 1
    (line,) = outcome.stderr.splitlines()
    assert "gives other probabilities than those proven at build" in line
    assert "failed" in outcome.stdout
    assert "not checked here yet" in dragoman("inspect", damaged).stdout
    outcome = dragoman("run", damaged, "dragoman")
    assert (outcome.returncode, outcome.stdout) == (2, "")
    assert "known answers differ" in outcome.stderr
    assert dragoman("run", damaged, "dragoman", "--check", "never").returncode == 0
    assert dragoman("score", damaged, "--check", "always").returncode == 2


def test_a_bundle_without_known_answers_needs_a_checkpoint(
    dragoman: Dragoman, bundle_copy: Path
) -> None:
    (bundle_copy / KNOWN_ANSWERS_FILE).unlink()
    record_again(bundle_copy)
    outcome = dragoman("verify", bundle_copy)
    assert (outcome.returncode, outcome.stdout) == (2, "")
    (line,) = outcome.stderr.splitlines()
    assert "expected a bundle with known answers, which dragoman build writes, found none" in line
    assert dragoman("verify", bundle_copy, "--limit", 3).returncode == 2
