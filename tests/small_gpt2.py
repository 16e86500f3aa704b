"""A small random GPT-2 of odd sizes: at Hugging Face, and as a bundle of token ids."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch

from dragoman.export import export_bundle
from dragoman.export.checkpoints import read_checkpoint

transformers: Any = importlib.import_module("transformers")

POSITIONS, VOCABULARY, START, END = 13, 37, 1, 2


def small_gpt2(directory: Path) -> Any:
    """Theirs; the bundle is in the folder `bundle` of the directory."""
    torch.manual_seed(7)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=21,
        n_layer=2,
        n_head=3,
        n_inner=35,
        n_positions=POSITIONS,
        bos_token_id=START,
        eos_token_id=END,
        pad_token_id=0,
        initializer_range=0.5,
    )
    theirs = transformers.GPT2LMHeadModel(config).eval()
    for parameter in theirs.parameters():  # biases and gains differ from what they begin as
        parameter.data += 0.1 * torch.randn_like(parameter)
    theirs.save_pretrained(directory / "checkpoint")
    (directory / "bundle").mkdir()
    model = read_checkpoint(directory / "checkpoint").model
    export_bundle(model, directory / "bundle", name="gpt2")
    return theirs


@torch.inference_mode()
def their_logits(theirs: Any, tokens: list[int]) -> torch.Tensor:
    """Of the token after each, in double precision: [T, V]."""
    logits: torch.Tensor = theirs(torch.tensor([tokens])).logits[0].double()
    return logits


def their_choices(theirs: Any, prompt: list[int]) -> list[int]:
    """The most probable continuation, up to an end token or as many tokens as can be read."""
    found: list[int] = []
    while len(prompt) + len(found) <= POSITIONS and END not in found:
        found.append(int(their_logits(theirs, prompt + found)[-1].argmax()))
    return found
