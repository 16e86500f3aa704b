"""A Marian checkpoint of seeded random weights: every tool in the comparison reads this format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from dragoman.export.families import FAMILIES
from dragoman.export.families.bart import LOGITS_BIAS
from dragoman.export.families.marian import position_table

from .random_model import random_model
from .shapes import SHAPES


def marian_config(shape: str, *, vocab_size: int) -> dict[str, Any]:
    """The fields of `config.json`. The end token is the first of the vocabulary; padding and start
    are the last.

    Args:
        shape: a key of `SHAPES`
    """
    sizes = SHAPES[shape]
    pad = vocab_size - 1
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "vocab_size": vocab_size,
        "decoder_vocab_size": vocab_size,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "encoder_layers": sizes.layers,
        "decoder_layers": sizes.layers,
        "d_model": sizes.d_model,
        "encoder_attention_heads": sizes.heads,
        "decoder_attention_heads": sizes.heads,
        "encoder_ffn_dim": sizes.d_ff,
        "decoder_ffn_dim": sizes.d_ff,
        "activation_function": sizes.activation,
        "scale_embedding": True,
        "max_position_embeddings": 512,
        "eos_token_id": 0,
        "forced_eos_token_id": None,
        "bos_token_id": None,
        "pad_token_id": pad,
        "decoder_start_token_id": pad,
    }


def write_random_marian(config: dict[str, Any], directory: Path, *, seed: int) -> None:
    """Write a checkpoint, the same for the same seed.

    Args:
        config: fields of `config.json`, such as `marian_config` returns
        directory: created if it does not exist
    """
    family = FAMILIES["marian"]
    model = random_model(family.config(config), seed=seed)
    with torch.no_grad():
        for stack in ("encoder", "decoder"):
            table = model.get_parameter(f"{stack}.embedding.positions.table")
            table.copy_(position_table(*table.shape))
    weights = {
        family.weight_name(name): parameter.detach()
        for name, parameter in model.named_parameters()
        if not name.endswith("positions.table")
    }
    weights[LOGITS_BIAS] = weights[LOGITS_BIAS][None]
    # Tied embeddings are stored once, under Hugging Face's name for the shared table.
    weights["model.shared.weight"] = weights.pop("model.encoder.embed_tokens.weight")
    directory.mkdir(parents=True, exist_ok=True)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    generation = {
        name: config[name] for name in ("decoder_start_token_id", "eos_token_id", "pad_token_id")
    }
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")
