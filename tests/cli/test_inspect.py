"""`dragoman inspect`: what a bundle is, for people and as the manifest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

Dragoman = Callable[..., CompletedProcess[str]]


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
        "bundle g2p-en (schema 3)",
        "target cpu, fp32",
        "decoder 1 layers, heads: 2 of size 16",
        "vocabulary 29 source, 42 target",
        "positions 32 source, 24 target",
        "new tokens at most 24 by default",
        "tokenizers inside",
        "parity passed: 9 of 9 sequences identical (held_out.tsv, 9 lines; onnxruntime)",
        "word error 100.00%, oracle 100.00%",
    ):
        assert fact in output, fact
    for name in ("weights.bin", "encoder.onnx", "decoder.onnx", "target_tokenizer.json"):
        size = (bundle / name).stat().st_size
        assert any(name in row and f"{size:,}" in row for row in outcome.stdout.splitlines())
    for role in ("past_key", "cross_value", "next_token", "[batch, 2, capacity, 16]"):
        assert role in output


def test_a_bundle_that_was_not_verified(dragoman: Dragoman, token_bundle: Path) -> None:
    output = words(dragoman("inspect", token_bundle).stdout)
    assert "parity not verified" in output
    assert "tokenizers none: token ids in and out" in output
