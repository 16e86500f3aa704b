"""`dragoman inspect`: what a bundle is, for people and as the manifest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from .conftest import publish

Dragoman = Callable[..., CompletedProcess[str]]


STRATEGIES: list[tuple[dict[str, Any], str]] = [
    (
        {"num_beams": 4, "length_penalty": 0.6, "early_stopping": True},
        "decodes 4 beams, length penalty 0.6, early stopping true new tokens",
    ),
    (
        {"num_beams": 2, "early_stopping": "never", "temperature": 2.0, "min_length": 3},
        "decodes 2 beams, length penalty 1, early stopping never new tokens at most 24 by default "
        "settings min_length 3; temperature 2.0 tokenizers",
    ),
    ({"do_sample": True}, "decodes samples new tokens"),
    (
        {"do_sample": True, "temperature": 0.7, "top_k": 50, "top_p": 0.9, "length_penalty": 2.0},
        "decodes samples, temperature 0.7, top_k 50, top_p 0.9 new tokens at most 24 by default "
        "settings length_penalty 2.0 tokenizers",
    ),
]


def words(text: str) -> str:
    return " ".join(text.split())


def test_json_is_the_manifest(dragoman: Dragoman, bundle: Path) -> None:
    outcome = dragoman("inspect", bundle, "--json")
    assert outcome.returncode == 0
    assert outcome.stdout == (bundle / "manifest.json").read_text(encoding="utf-8")
    assert json.loads(outcome.stdout)["parity"]["passed"] is True


def test_the_output_for_people(dragoman: Dragoman, bundle: Path) -> None:
    outcome = dragoman("inspect", bundle)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    output = words(outcome.stdout)
    for fact in (
        "bundle g2p-en (schema 1)",
        "target cpu, fp32",
        "decoder 1 layers, heads: 2 of size 16",
        "vocabulary 29 source, 42 target",
        "positions 32 source, 24 target",
        "decodes greedily",
        "new tokens at most 24 by default",
        "tokenizers inside",
        "in a batch every output is the same bit for bit, whatever else is in it (x86 processors)",
        "parity passed (held_out.tsv, 9 lines; onnxruntime)",
        "greedy outputs: 9 of 9 identical",
        "word error of 9 texts: 100.00%, trained model 100.00%",
    ):
        assert fact in output, fact
    for name in ("weights.bin", "encoder.onnx", "decoder.onnx", "target_tokenizer.json"):
        size = (bundle / name).stat().st_size
        assert any(name in row and f"{size:,}" in row for row in outcome.stdout.splitlines())
    for role in ("past_key", "cross_value", "next_token", "[batch, 2, capacity, 16]"):
        assert role in output


@pytest.mark.parametrize(("settings", "shown"), STRATEGIES)
def test_how_it_decodes_by_default(
    dragoman: Dragoman, bundle_copy: Path, settings: dict[str, Any], shown: str
) -> None:
    publish(bundle_copy, **settings)
    assert shown in words(dragoman("inspect", bundle_copy).stdout)


def test_a_bundle_that_was_not_verified(dragoman: Dragoman, token_bundle: Path) -> None:
    output = words(dragoman("inspect", token_bundle).stdout)
    assert "parity not verified" in output
    assert "tokenizers none: token ids in and out" in output


def test_parity_that_failed_or_decided_nothing(dragoman: Dragoman, bundle_copy: Path) -> None:
    manifest = json.loads((bundle_copy / "manifest.json").read_text(encoding="utf-8"))
    parity = manifest["parity"]
    parity |= {"passed": False, "inputs": "a[/b]\x1b[31m.tsv"}
    parity["tokens"]["identical"] = 0
    parity["tasks"][0]["passed"] = False
    (bundle_copy / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    outcome = dragoman("inspect", bundle_copy)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    output = words(outcome.stdout)
    assert "parity failed (a[/b]\\x1b[31m.tsv; onnxruntime)" in output
    assert "greedy outputs: 0 of 9 identical (allowed all identical) undecided" in output
    assert "trained model 100.00% (allowed 0.00% worse) failed" in output
