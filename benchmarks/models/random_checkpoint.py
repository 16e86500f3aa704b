"""Checkpoints of seeded random weights in Hugging Face's format, which every tool in the comparison
reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from dragoman.export.families import FAMILIES
from dragoman.export.families.bart import LOGITS_BIAS, POSITIONS, SHARED, TOKENS

from .checkpoint_configs import config_of
from .random_model import random_model
from .shapes import SHAPES


def write_random_checkpoint(
    config: dict[str, Any],
    directory: Path,
    *,
    seed: int,
    sharpness: float = 4.0,
    generation: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint, the same for the same seed.

    Args:
        config: fields of `config.json`, such as `checkpoint_configs` has; of Marian, BART or
            Whisper
        directory: created if it does not exist
        sharpness: of attention, see `random_model`
        generation: fields of `generation_config.json`, besides those of tokens
    """
    family = FAMILIES[config["model_type"]]
    model = random_model(family.config(config), seed=seed, sharpness=sharpness)
    weights = {
        family.weight_name(name): parameter.detach() for name, parameter in model.named_parameters()
    }
    if family.model_type == "marian":  # computed by whoever reads it
        for name in POSITIONS.values():
            del weights[name]
    if family.model_type == "bart":  # the first two rows are not used
        for name in POSITIONS.values():
            weights[name] = torch.cat([torch.zeros_like(weights[name][:2]), weights[name]])
    if LOGITS_BIAS in weights:
        weights[LOGITS_BIAS] = weights[LOGITS_BIAS][None]
    # Tied embeddings are stored once, under Hugging Face's name for the shared table.
    if TOKENS["encoder"] in weights:
        weights[SHARED] = weights.pop(TOKENS["encoder"])
    directory.mkdir(parents=True, exist_ok=True)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    _write_json(directory / "config.json", config)
    tokens = ("decoder_start_token_id", "eos_token_id", "pad_token_id")
    settings = {name: config[name] for name in tokens} | dict(generation or {})
    _write_json(directory / "generation_config.json", settings)


def write_random_text_model(
    shape: str, directory: Path, *, vocab_size: int | None = None, seed: int = 1
) -> None:
    """Write a checkpoint of a text model, the same for the same seed.

    Args:
        shape: a key of `SHAPES`
        directory: created if it does not exist
        vocab_size: None: the shape's own
    """
    config, sizes = config_of(shape, vocab_size=vocab_size), SHAPES[shape]
    write_random_checkpoint(config, directory, seed=seed, sharpness=sizes.sharpness)


def _write_json(file: Path, values: dict[str, Any]) -> None:
    file.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
