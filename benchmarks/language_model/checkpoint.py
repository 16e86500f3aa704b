"""GPT-2 checkpoints of seeded random weights, as Hugging Face's transformers writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import torch

from ..peers.library import import_library

END = "<|endoftext|>"
SHARPNESS = 4.0
"""Of attention, see `random_model`."""


class LanguageModelShape(NamedTuple):
    layers: int
    d_model: int
    heads: int
    vocab_size: int
    positions: int


LANGUAGE_MODELS = {
    "tiny": LanguageModelShape(layers=2, d_model=64, heads=4, vocab_size=200, positions=128),
    "gpt2": LanguageModelShape(layers=12, d_model=768, heads=12, vocab_size=50257, positions=1024),
}
"""gpt2 is that of the smallest GPT-2 (124 M parameters); tiny is small enough for tests."""


def describe(shape: str) -> str:
    """The model as records name it."""
    sizes = LANGUAGE_MODELS[shape]
    return (
        f"GPT-2, {sizes.layers} layers of {sizes.d_model}, vocabulary {sizes.vocab_size}, "
        "random weights"
    )


def write_random_language_model(shape: str, directory: Path, *, seed: int = 1) -> None:
    """Write a checkpoint, the same for the same seed. Like `random_model`, it does not repeat one
    token, and never chooses its end token, the last of the vocabulary.

    Args:
        shape: a key of `LANGUAGE_MODELS`
        directory: created if it does not exist

    Raises:
        DragomanError: transformers is not installed.
    """
    transformers = import_library("transformers")
    sizes = LANGUAGE_MODELS[shape]
    end = sizes.vocab_size - 1
    torch.manual_seed(seed)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_layer=sizes.layers,
            n_embd=sizes.d_model,
            n_head=sizes.heads,
            vocab_size=sizes.vocab_size,
            n_positions=sizes.positions,
            bos_token_id=end,
            eos_token_id=end,
            pad_token_id=end,
        )
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight")):
                parameter.normal_()
            elif name.endswith("c_attn.weight"):  # query, key and value side by side
                parameter[:, : 2 * sizes.d_model] *= SHARPNESS
        model.transformer.wte.weight[end] = 0
    model.save_pretrained(directory)
    _write_tokenizer(directory, sizes.vocab_size)


def _write_tokenizer(directory: Path, vocab_size: int) -> None:
    """One that tools ask for which are given token ids: pieces in the order of their ids, and no
    merges.
    """
    pieces = {f"t{index}": index for index in range(vocab_size - 1)} | {END: vocab_size - 1}
    files = {
        "vocab.json": json.dumps(pieces),
        "merges.txt": "#version: 0.2\n",
        "tokenizer_config.json": json.dumps({"tokenizer_class": "GPT2Tokenizer"}),
    }
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8")
