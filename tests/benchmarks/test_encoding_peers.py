"""Every peer encodes the same texts: those in fp32 to the reference's vectors, all others close."""

from __future__ import annotations

import importlib
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.benchmarks.compare.contenders.encoding import (
    PROSE,
    calls,
    contenders,
    load_tokenizer,
    pieces,
)
from dragoman.benchmarks.compare.task import Run
from dragoman.benchmarks.compare.tasks.encoding import measure_encoding

from .doubles import OPENVINO, OPENVINO_PYTHON

pytestmark = pytest.mark.peers


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A BERT of random weights that spells every word, in the format of sentence-transformers."""
    transformers: Any = importlib.import_module("transformers")
    library: Any = importlib.import_module("sentence_transformers")
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,;:()[]{}'\"-/@$"
    pieces_of_words = [*letters, *(f"##{letter}" for letter in letters)]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces_of_words]
    bert = tmp_path / "bert"
    bert.mkdir()
    (bert / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    tokenizer = transformers.BertTokenizerFast(str(bert / "vocab.txt"), model_max_length=64)
    tokenizer.save_pretrained(bert)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
        initializer_range=0.1,
    )
    transformers.BertModel(config).save_pretrained(bert)
    model = library.SentenceTransformer(str(bert), device="cpu")  # adds mean pooling
    model.save(str(tmp_path / "sentences"))
    return tmp_path / "sentences"


def test_encoders(checkpoint: Path, tmp_path: Path) -> None:
    tokenizer, prose = load_tokenizer(checkpoint), PROSE.read_text(encoding="utf-8")
    everyone = contenders([*pieces(prose, tokenizer, repeat(20, 8))], openvino_in=OPENVINO)
    selected = {c.name for c in everyone if c.timed}
    if OPENVINO_PYTHON is None:
        selected = {name for name in selected if "OpenVINO" not in name}
    figures = measure_encoding(
        Run(tmp_path, only=sorted(selected)),
        everyone,
        [calls(prose, tokenizer, 9, 1), calls(prose, tokenizer, 21, 3)],
        checkpoint=checkpoint,
        threads=[1],
        rounds=1,
    )
    assert not figures["failures"]
    assert {m["contender"] for m in figures["measurements"]} == selected
