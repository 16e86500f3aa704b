"""A small BERT with each head, as bundles that show attention."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from dragoman.export import export_bundle
from dragoman.export.checkpoints import read_checkpoint
from dragoman.runtime.format.texts import Prompts

from ..runtime.encoding.conftest import CONFIG, PIECES, transformers

HEADS = {
    "vectors": "Model",
    "classes": "ForSequenceClassification",
    "tags": "ForTokenClassification",
    "masks": "ForMaskedLM",
    "answers": "ForQuestionAnswering",
    "relevance": "ForSequenceClassification",
}
LABELS = {"relevance": ("relevance",), "classes": ("contradiction", "entailment")}


PROMPTS = {"vectors": Prompts({"query": "who eats ", "passage": "the "})}


def make_berts(root: Path) -> dict[str, Path]:
    """The directories of the bundles, by the names of `HEADS`."""
    return {name: _make(root, name, head) for name, head in HEADS.items()}


def _make(root: Path, name: str, head: str) -> Path:
    torch.manual_seed(0)
    checkpoint, directory = root / f"{name}-checkpoint", root / name
    labels = {"id2label": dict(enumerate(LABELS[name]))} if name in LABELS else {}
    model = getattr(transformers, f"Bert{head}")(transformers.BertConfig(**CONFIG | labels))
    model.save_pretrained(checkpoint)
    (checkpoint / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    read = read_checkpoint(checkpoint)
    assert read.tokenizers is not None
    tokenizers = replace(read.tokenizers, prompts=PROMPTS.get(name))
    directory.mkdir()
    export_bundle(read.model, directory, name=name, tokenizers=tokenizers, attention=True)
    return directory
