"""`dragoman build` and `export`: a complete bundle that passed parity, or none."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from dragoman.runtime import read_bundle
from dragoman.verification.stored import texts
from dragoman.verification.tolerances import TOLERANCES

Outcome = CompletedProcess[str]
Dragoman = Callable[..., Outcome]

BASE_BYTES = 2.4e9
"""What a build takes whatever the size of the model: libraries, and comparisons part by part."""


def test_build_writes_a_bundle_and_reports_parity(build_outcome: tuple[Path, Outcome]) -> None:
    directory, outcome = build_outcome
    assert outcome.returncode == 0
    assert outcome.stderr == ""
    last = outcome.stdout.splitlines()[-1]
    assert last == f"Built {directory}, parity passed. Next: dragoman run {directory} ..."
    for figure in ("logits", "9 of 9 identical", "word error", "held_out.tsv, 9 lines"):
        assert figure in " ".join(outcome.stdout.split())
    assert "failed" not in outcome.stdout
    assert [path.name for path in directory.parent.iterdir()] == [directory.name]
    manifest = read_bundle(directory).manifest
    assert manifest.name == "g2p-en"  # the recipe's
    assert manifest.parity is not None and manifest.parity.passed
    assert manifest.parity.tokens.identical == manifest.parity.tokens.sequences == 9
    (task,) = manifest.parity.tasks
    assert (task.metric, task.pairs, task.higher_is_better) == ("word error", 9, False)
    assert (task.allowed, task.chance, task.signature) == (0.0, 1.0, "recipe:g2p-en")
    assert manifest.tokenizers is not None
    assert manifest.build is not None and manifest.build.seconds > 0
    assert manifest.build.peak_memory_mb > 100


def test_the_checkpoints_own_tokenizer_is_compared_on_texts(
    build_outcome: tuple[Path, Outcome],
) -> None:
    directory, outcome = build_outcome
    parity = read_bundle(directory).manifest.parity
    assert parity is not None
    (check,) = (check for check in parity.checks if check.name == "tokens of texts")
    assert check.passed and check.note == "" and check.compared > 200
    assert f"{check.compared} texts compared, none differs" in " ".join(
        outcome.stdout.replace("│", " ").split()
    )


def test_a_text_with_other_tokens_stops_a_build(
    dragoman: Dragoman, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a checkpoint whose files say what the bundle does not follow."""

    def told_apart(tokenizer: Any, pretokenized: bool) -> Any:
        side = side_of(tokenizer, pretokenized)
        assert side.source is not None
        read = side.source
        return dataclasses.replace(side, source=lambda text: read(text.replace("n", "m")))

    side_of = texts._side_of
    monkeypatch.setattr(texts, "_side_of", told_apart)
    outcome = dragoman("build", checkpoint, "-o", tmp_path / "out", "--target", "neutral")
    assert outcome.returncode == 1
    (line,) = outcome.stderr.splitlines()
    assert line.startswith(
        "Error: parity failed: tokens of texts: source text 'no ': token 0: expected 15 ('m'), "
        "found 16 ('n'); "
    )
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def _no_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TOLERANCES, "fp32", 0.0)


@pytest.mark.usefixtures("_no_tolerance", "copied_export")
def test_a_bundle_that_fails_parity_does_not_appear(
    dragoman: Dragoman, checkpoint: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    outcome = dragoman("build", checkpoint, "-o", output)
    assert outcome.returncode == 1
    (line,) = outcome.stderr.splitlines()
    assert line.startswith("Error: parity failed: cross_key_0 differs by ")
    # What is looked at is a copy of the bundle itself, which differs in no tensor.
    assert "would pass; no tensor within the graphs differs by more than 0; " in line
    assert line.endswith(f"; {output} was not written")
    assert "Built" not in outcome.stdout
    # What is wrong stands first in the table.
    rows = [r for r in outcome.stdout.splitlines() if "failed" in r or "passed" in r]
    verdicts = ["failed" in row for row in rows]
    assert any(verdicts) and verdicts == sorted(verdicts, reverse=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("_no_tolerance", "copied_export")
def test_a_failed_build_leaves_the_bundle_that_was_there(
    dragoman: Dragoman, checkpoint: Path, bundle_copy: Path
) -> None:
    before = (bundle_copy / "manifest.json").read_bytes()
    outcome = dragoman("build", checkpoint, "-o", bundle_copy, "--force")
    assert outcome.returncode == 1
    assert (bundle_copy / "manifest.json").read_bytes() == before
    assert [path.name for path in bundle_copy.parent.iterdir()] == ["copy"]


@pytest.mark.usefixtures("_no_tolerance", "copied_export")
def test_a_failed_bundle_that_is_allowed_is_marked(
    dragoman: Dragoman, checkpoint: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    outcome = dragoman("build", checkpoint, "-o", output, "--allow-failed-parity")
    assert outcome.returncode == 1
    assert outcome.stderr.endswith(f"; {output} is marked as failed\n")
    parity = read_bundle(output).manifest.parity
    assert parity is not None and not parity.passed
    assert "failed" in dragoman("inspect", output).stdout


@pytest.mark.usefixtures("copied_export")
def test_tokens_that_differ_fail_a_build(
    dragoman: Dragoman, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle is made to choose otherwise in the second token of every word."""
    from dragoman.reference_model import greedy_verified as real

    def other(*arguments: object) -> list[list[int]]:
        rows = real(*arguments)  # type: ignore[arg-type]
        return [[row[0], 3 + (row[1] - 2) % 39, *row[2:]] if len(row) > 1 else row for row in rows]

    monkeypatch.setattr("dragoman.verification.oracle.greedy_verified", other)
    outcome = dragoman("build", checkpoint, "-o", tmp_path / "out")
    assert outcome.returncode == 1
    assert outcome.stderr.startswith("Error: parity failed: ")
    assert " sequences differ; the worst, held_out.tsv, line " in outcome.stderr
    assert ", at step 1: expected token " in outcome.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("copied_export")
def test_own_inputs_with_a_limit(dragoman: Dragoman, checkpoint: Path, tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("one\ntwo\nthree\nfour\nfive\nsix\n", encoding="utf-8")
    output = tmp_path / "out"
    outcome = dragoman("build", checkpoint, "-o", output, "--inputs", words, "--limit", 3)
    assert outcome.returncode == 0, outcome.stderr
    parity = read_bundle(output).manifest.parity
    assert parity is not None
    assert parity.inputs == "words.txt, 6 lines, 3 of them spread evenly"
    assert parity.tokens.sequences == 3
    assert parity.tasks == ()  # no references


@pytest.mark.usefixtures("copied_export")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected at least one line, found none"),
        (b"need\n\na\n", "line 2: expected a source text, found none"),
        (b"need\nn3rd\n", "'n3rd': unknown to this model: '3'"),
        (b"need\n   \na\n", "'   ': expected 1 to 32 tokens, found 0"),
        (b"x" * 1_000_000, "expected 1 to 32 tokens, found at least 2304 tokens"),
        (b"na\xffve\n", "expected UTF-8 text"),
    ],
)
def test_inputs_that_cannot_be_used(
    dragoman: Dragoman, checkpoint: Path, tmp_path: Path, content: bytes, message: str
) -> None:
    words = tmp_path / "words.txt"
    words.write_bytes(content)
    outcome = dragoman("build", checkpoint, "-o", tmp_path / "out", "--inputs", words)
    assert outcome.returncode == 2
    (line,) = outcome.stderr.splitlines()
    assert line.startswith(f"Error: {words}") and message in line
    assert len(line) < 500
    assert [path.name for path in tmp_path.iterdir()] == ["words.txt"]


@pytest.mark.usefixtures("copied_export")
def test_inputs_without_a_file_or_a_tokenizer_to_read_them(
    dragoman: Dragoman, checkpoint: Path, token_checkpoint: Path, tmp_path: Path
) -> None:
    words = tmp_path / "words.txt"
    outcome = dragoman("build", checkpoint, "-o", tmp_path / "out", "--inputs", words)
    assert outcome.returncode == 2 and f"found nothing at {words}" in outcome.stderr
    words.write_text("need\n", encoding="utf-8")
    outcome = dragoman("build", token_checkpoint, "-o", tmp_path / "out", "--inputs", words)
    assert outcome.returncode == 2 and "texts need a checkpoint with tokenizers" in outcome.stderr


def test_bf16_is_verified_though_no_processor_runs_it(
    dragoman: Dragoman, checkpoint: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    outcome = dragoman("build", checkpoint, "-o", output, "--precision", "bf16", "--limit", "7")
    assert outcome.returncode == 0, outcome.stderr
    manifest = read_bundle(output).manifest
    assert (manifest.target, manifest.precision) == ("neutral", "bf16")
    assert manifest.parity is not None and manifest.parity.passed
    assert manifest.parity.backend == "onnxruntime, bfloat16 emulated in float32"
    run = dragoman("run", output, "need")
    assert run.returncode == 2
    assert "bfloat16 cannot run on ONNX Runtime" in run.stderr


def test_export_does_not_verify(
    dragoman: Dragoman, checkpoint: Path, tmp_path: Path, copied_export: None
) -> None:
    output = tmp_path / "deep" / "er" / "out"
    outcome = dragoman("export", checkpoint, "-o", output)
    assert outcome.returncode == 0
    assert outcome.stdout == (
        f"Exported {output}, not verified. Next: dragoman verify {output} {checkpoint}\n"
    )


@pytest.mark.shipped
def test_the_memory_of_a_build_is_bounded(tmp_path: Path) -> None:
    """77 million weights, by the system's own measure of the process, mapped files included."""
    from transformers import M2M100Config, M2M100ForConditionalGeneration

    stacks: dict[str, Any] = {f"{side}_layers": 6 for side in ("encoder", "decoder")}
    stacks |= {f"{side}_ffn_dim": 2048 for side in ("encoder", "decoder")}
    stacks |= {f"{side}_attention_heads": 8 for side in ("encoder", "decoder")}
    config = M2M100Config(vocab_size=64_000, d_model=512, max_position_embeddings=512, **stacks)
    large: Any = M2M100ForConditionalGeneration(config)
    large.half()
    large.generation_config.max_length = 40
    large.save_pretrained(tmp_path / "checkpoint")
    weights = sum(weight.numel() * 2 for weight in large.parameters())
    command = [sys.executable, "-m", "dragoman", "build", str(tmp_path / "checkpoint")]
    options = ["-o", str(tmp_path / "bundle"), "--precision", "int8", "--limit", "8"]
    child = subprocess.Popen([*command, *options, "--threads", "2"], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    assert usage.ru_maxrss * 1024 < 2.6 * weights + BASE_BYTES
