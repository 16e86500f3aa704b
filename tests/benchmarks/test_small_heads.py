"""Heads that are trained for a minute: their checkpoints are those that Dragoman reads."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from docs.tools.small_heads import HEADS, IGNORED, NAMES, NLI, train
from dragoman.export.checkpoints import read_checkpoint
from dragoman.reference_model import EncoderModel

transformers: Any = importlib.import_module("transformers")


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """A BERT with a vocabulary of letters."""
    directory = tmp_path / "encoder"
    letters = [chr(letter) for letter in range(ord("!"), ord("~") + 1) if not chr(letter).isupper()]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{c}" for c in letters)]
    config = transformers.BertConfig(
        vocab_size=len(pieces),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=160,
    )
    transformers.BertModel(config).save_pretrained(directory)
    (directory / "vocab.txt").write_text("\n".join(pieces))
    transformers.BertTokenizerFast(str(directory / "vocab.txt")).save_pretrained(directory)
    return directory


@pytest.mark.parametrize(
    ("name", "task", "labels"),
    [
        ("feelings", "sequence-classification", ("negative", "positive")),
        ("names", "token-classification", NAMES),
        ("capitals", "masked-language-model", ()),
        ("questions", "question-answering", ()),
        ("reranker", "sequence-classification", ("relevance",)),
        ("nli", "sequence-classification", NLI),
    ],
)
def test_a_head(
    name: str, task: str, labels: tuple[str, ...], encoder: Path, tmp_path: Path
) -> None:
    loss = train(name, encoder, tmp_path / name, steps=1)
    assert 0 < loss < 10
    model = read_checkpoint(tmp_path / name).model
    assert isinstance(model, EncoderModel)
    assert model.config.head is not None
    assert (model.config.head.task, model.config.head.labels) == (task, labels)


def test_the_first_token_of_each_word_has_its_label(encoder: Path) -> None:
    import random

    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder)
    batch = HEADS["names"].make(tokenizer, random.Random(1))
    for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
        pieces = tokenizer.convert_ids_to_tokens(ids)
        labelled = [label != IGNORED for label in labels.tolist()]
        assert labelled == [piece[0] != "[" and not piece.startswith("##") for piece in pieces]
        assert {int(label) for label in labels} >= {0, 1, 2, 3, 4}


def test_answers_are_where_they_are_said_to_be(encoder: Path) -> None:
    import random

    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder)
    batch = HEADS["questions"].make(tokenizer, random.Random(1))
    assert torch.all(batch["start_positions"] <= batch["end_positions"])
    spans = zip(batch["input_ids"], batch["start_positions"], batch["end_positions"], strict=True)
    for ids, first, last in spans:
        question, _, context = tokenizer.decode(ids, skip_special_tokens=False).partition("[SEP]")
        answer = tokenizer.decode(ids[first : last + 1]).replace(" ", "")
        assert answer in context.replace(" ", "")
        assert answer not in question.replace(" ", "")
