"""Seeded random weights in the shape of Marian models, in the format that every peer reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from dragoman.benchmarks.random_model import random_model
from dragoman.benchmarks.shapes import SHAPES
from dragoman.export.families import FAMILIES
from dragoman.export.families.bart import LOGITS_BIAS
from dragoman.export.families.marian import position_table


def marian_shape(name: str, *, vocab_size: int) -> dict[str, Any]:
    """The fields of a `config.json`: the end token is the first, padding and start the last."""
    shape = SHAPES[name]
    pad = vocab_size - 1
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "vocab_size": vocab_size,
        "decoder_vocab_size": vocab_size,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "encoder_layers": shape["layers"],
        "decoder_layers": shape["layers"],
        "d_model": shape["d_model"],
        "encoder_attention_heads": shape["heads"],
        "decoder_attention_heads": shape["heads"],
        "encoder_ffn_dim": shape["d_ff"],
        "decoder_ffn_dim": shape["d_ff"],
        "activation_function": shape["activation"],
        "scale_embedding": True,
        "max_position_embeddings": 512,
        "eos_token_id": 0,
        "forced_eos_token_id": None,
        "bos_token_id": None,
        "pad_token_id": pad,
        "decoder_start_token_id": pad,
    }


def write_random_marian(config: dict[str, Any], directory: Path, *, seed: int) -> None:
    """Write a model's configuration and weights, the same for the same seed.

    Args:
        config: fields of `config.json`, as of `marian_shape`
        directory: made where there is none
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
    # Tied embeddings are stored once, under the name that Hugging Face gives to what is shared.
    weights["model.shared.weight"] = weights.pop("model.encoder.embed_tokens.weight")
    directory.mkdir(parents=True, exist_ok=True)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    decoding = {
        name: config[name] for name in ("decoder_start_token_id", "eos_token_id", "pad_token_id")
    }
    (directory / "generation_config.json").write_text(json.dumps(decoding, indent=1) + "\n")
