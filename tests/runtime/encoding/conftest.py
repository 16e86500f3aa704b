"""Random BERTs with every head, as bundles, and Hugging Face's own models and tokenizers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from dragoman.export.checkpoints import read_checkpoint
from dragoman.export.neutral_bundle import export_bundle
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.runtime import Model, load

transformers: Any = importlib.import_module("transformers")

PIECES = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("the", "man", "eat", "##s", "##ing", "food", "paris", "is", "in", "fran", "##ce", "."),
    *(chr(letter) for letter in range(ord("a"), ord("z") + 1)),
    *(f"##{chr(letter)}" for letter in range(ord("a"), ord("z") + 1)),
]
POSITIONS = 24
CONFIG: dict[str, Any] = {
    "vocab_size": len(PIECES),
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.4,
}


class Case(NamedTuple):
    """Theirs and ours."""

    theirs: Any
    tokenizer: Any
    ours: Model


Make = Callable[..., Case]


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A model with a head, exported and optimized, each once."""
    known: dict[str, Case] = {}

    def make(head: str, **changes: Any) -> Case:
        key = repr((head, changes))
        if key not in known:
            known[key] = _case(tmp_path_factory.mktemp("encoder"), head, changes)
        return known[key]

    return make


def _case(directory: Path, head: str, changes: dict[str, Any]) -> Case:
    torch.manual_seed(0)
    theirs = getattr(transformers, f"Bert{head}")(transformers.BertConfig(**CONFIG | changes))
    theirs.eval()
    checkpoint = directory / "checkpoint"
    theirs.save_pretrained(checkpoint)
    (checkpoint / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    tokenizer = transformers.BertTokenizer(str(checkpoint / "vocab.txt"))
    read = read_checkpoint(checkpoint)
    (directory / "neutral").mkdir()
    (directory / "cpu").mkdir()
    neutral = export_bundle(
        read.model, directory / "neutral", name="bert", tokenizers=read.tokenizers
    )
    optimize_bundle(neutral, directory / "cpu", target="cpu")
    return Case(theirs, tokenizer, load(directory / "cpu", threads=1))
