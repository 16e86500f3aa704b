"""`dragoman sensitivity`, and `--keep-fp32` with the names that it lists."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from dragoman.runtime import read_bundle
from dragoman.verification.sensitivity import read_sensitivity

Outcome = CompletedProcess[str]
Dragoman = Callable[..., Outcome]


@pytest.fixture(scope="module")
def int8(checkpoint: Path, build_here: Dragoman, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("int8") / "bundle"
    done = build_here("build", checkpoint, "-o", directory, "--precision", "int8")
    assert done.returncode == 0, done.stderr
    return directory


def test_what_is_measured_is_shown_and_written(
    int8: Path, checkpoint: Path, dragoman: Dragoman, tmp_path: Path
) -> None:
    output = tmp_path / "sensitivity.json"
    outcome = dragoman("sensitivity", int8, checkpoint, "-o", output, "--threads", 1)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    found = read_sensitivity(output)
    assert (found.bundle, found.target, found.precision) == ("g2p-en", "cpu", "int8")
    assert found.inputs == "held_out.tsv, 9 lines" and not found.random
    assert found.differing == ()
    worst = found.worst[0]
    assert worst.alone is not None
    shown = " ".join(outcome.stdout.split())
    assert f"{worst.name} │ {worst.error:.2%} │ {worst.alone.mean:.2g} │" in shown
    assert f"│ none │ {found.keeping[0].effect.mean:.2g} │" in shown
    if found.best is not None:
        names = " ".join(f"--keep-fp32 {p.name}" for p in found.worst[: found.best.count])
        assert f"Next: dragoman build {checkpoint} -o ... --precision int8 {names}" in shown
    assert outcome.stdout.splitlines()[-1] == f"Wrote {output}"
    again = dragoman("sensitivity", int8, checkpoint, "-o", output)
    assert again.returncode == 2 and "--force" in again.stderr


def test_a_bundle_that_keeps_what_was_listed(
    int8: Path, checkpoint: Path, dragoman: Dragoman, tmp_path: Path
) -> None:
    output = tmp_path / "kept"
    names = ["decoder.layers.0.self_attention.query+key+value", "encoder.layers.0.feed_forward"]
    options = [word for name in names for word in ("--keep-fp32", name)]
    outcome = dragoman("build", checkpoint, "-o", output, "--precision", "int8", *options)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert "kept in fp32, as requested" in outcome.stdout
    kept = read_bundle(output).manifest.keep_fp32
    assert kept == (
        "encoder.layers.0.feed_forward.inner",
        "encoder.layers.0.feed_forward.outer",
        *(f"decoder.layers.0.self_attention.{part}" for part in ("query", "key", "value")),
    )
    inspected = " ".join(dragoman("inspect", output).stdout.split())
    assert f"in fp32 {', '.join(kept)}, as requested" in inspected
    verified = dragoman("verify", output, checkpoint)
    assert (verified.returncode, verified.stderr) == (0, "")
    assert read_bundle(output).size > read_bundle(int8).size
    assert "keep_fp32" not in json.loads((int8 / "manifest.json").read_text(encoding="utf-8"))
    again = tmp_path / "again.json"
    assert dragoman("sensitivity", output, checkpoint, "-o", again).returncode == 0
    marked = [module for p in read_sensitivity(again).products if p.kept for module in p.modules]
    assert sorted(marked) == sorted(kept)


def test_another_calibration_is_a_warning(
    int8: Path, checkpoint: Path, dragoman: Dragoman, tmp_path: Path
) -> None:
    texts = tmp_path / "texts"
    texts.write_text("aaaa\nb\n", encoding="utf-8")
    outcome = dragoman(*("sensitivity", int8, checkpoint, "--limit", 2, "--calibration", texts))
    assert outcome.returncode == 0
    (line,) = outcome.stderr.splitlines()
    assert re.match(r"Warning: \d+ of \d+ products are rounded otherwise than in the bundle", line)


def test_mistakes(
    bundle: Path, int8: Path, checkpoint: Path, dragoman: Dragoman, tmp_path: Path
) -> None:
    for arguments, problem in (
        (("sensitivity", bundle, checkpoint), "found fp32: there is nothing to measure"),
        (("sensitivity", int8, "g2p-en"), "was not made from a model like g2p-en"),
        (("sensitivity", int8, checkpoint, "-o", tmp_path, "--force"), "found a directory"),
        (
            ("build", checkpoint, "-o", tmp_path / "out", "--keep-fp32", "output"),
            "keep-fp32: expected a precision of weights, int8 or int4, found fp32",
        ),
        (
            (
                *("build", checkpoint, "-o", tmp_path / "out", "--precision", "int8"),
                *("--keep-fp32", "decoder.layers.7"),
            ),
            "such as decoder.layers.0, found 'decoder.layers.7'",
        ),
        (
            (
                *("build", checkpoint, "-o", tmp_path / "out", "--precision", "int8"),
                *("--keep-fp32", "output", "--target", "tensorrt-rtx"),
            ),
            "keep-fp32: expected a target of graphs, found tensorrt-rtx",
        ),
    ):
        outcome = dragoman(*arguments)
        assert outcome.returncode == 2
        (line,) = outcome.stderr.splitlines()
        assert problem in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_sixteen_bits_are_not_measured(
    precision: str, checkpoint: Path, dragoman: Dragoman, tmp_path: Path
) -> None:
    half = tmp_path / "half"
    built = dragoman("build", checkpoint, "-o", half, "--precision", precision, "--limit", 1)
    assert built.returncode == 0, built.stderr
    outcome = dragoman("sensitivity", half, checkpoint)
    assert outcome.returncode == 2
    assert f"found {precision}, which does not quantize weights one by one" in outcome.stderr
