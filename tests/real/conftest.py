"""Whisper's trained weights at Hugging Face, read from CTranslate2's files without our reader."""

from __future__ import annotations

import importlib
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

transformers: Any = importlib.import_module("transformers")

NAMES = {
    "position_encodings/encodings": "embed_positions.weight",
    "embeddings/weight": "embed_tokens.weight",
    "self_attention/layer_norm": "self_attn_layer_norm",
    "attention/layer_norm": "encoder_attn_layer_norm",
    "ffn/layer_norm": "final_layer_norm",
    "ffn/linear_0": "fc1",
    "ffn/linear_1": "fc2",
    "layer_norm/": "layer_norm/",
    "gamma": "weight",
    "beta": "bias",
    "/": ".",
}
STACKS = {
    "self_attention/linear_0": ("self_attn", "q_proj", "k_proj", "v_proj"),
    "self_attention/linear_1": ("self_attn", "out_proj"),
    "attention/linear_0": ("encoder_attn", "q_proj"),
    "attention/linear_1": ("encoder_attn", "k_proj", "v_proj"),
    "attention/linear_2": ("encoder_attn", "out_proj"),
}


def stored(path: Path) -> dict[str, Tensor]:
    """The float16 arrays of a file of version 6; everything else in it is skipped."""
    data, position = path.read_bytes(), 0

    def take(kind: str) -> int:
        nonlocal position
        (value,) = struct.unpack_from("<" + kind, data, position)
        position += struct.calcsize("<" + kind)
        return int(value)

    def text() -> str:
        nonlocal position
        size = take("H")
        position += size
        return data[position - size : position - 1].decode()

    arrays = {}
    assert (take("I"), text(), take("I")) == (6, "WhisperSpec", 3)
    for _ in range(take("I")):
        name = text()
        shape = [take("I") for _ in range(take("B"))]
        kind, size = take("B"), take("I")
        if shape:
            assert kind == 4
            array = np.frombuffer(data, np.float16, size // 2, position)
            arrays[name] = torch.tensor(array.astype(np.float32)).reshape(shape)
        position += size
    return arrays


def their_name(name: str) -> str:
    stack, _, rest = name.partition("/")
    if rest.startswith("layer_") and not rest.startswith("layer_norm"):
        index, _, rest = rest.removeprefix("layer_").partition("/")
        stack = f"{stack}.layers.{index}"
    for ours, theirs in NAMES.items():
        rest = rest.replace(ours, theirs)
    return f"model.{stack}.{rest}"


def their_model(directory: Path) -> Any:
    arrays = stored(directory / "model.bin")
    layers = {int(n.split("/")[1][6:]) for n in arrays if "/ffn/" in n}
    vocabulary, size = arrays["decoder/embeddings/weight"].shape
    config = transformers.WhisperConfig(
        vocab_size=vocabulary,
        d_model=size,
        encoder_layers=len(layers),
        decoder_layers=len(layers),
        encoder_attention_heads=size // 64,
        decoder_attention_heads=size // 64,
        encoder_ffn_dim=4 * size,
        decoder_ffn_dim=4 * size,
        attn_implementation="eager",
    )
    weights = {}
    for name, array in arrays.items():
        head, _, kind = name.rpartition("/")
        stack = next((s for s in STACKS if head.endswith("/" + s)), None)
        if stack is None:
            weights[their_name(name)] = array
            continue
        attention, *parts = STACKS[stack]
        prefix = their_name(head.removesuffix(stack) + "x").removesuffix("x")
        for part, value in zip(parts, array.chunk(len(parts)), strict=True):
            if (part, kind) == ("k_proj", "bias"):
                assert not value.any()  # Whisper's keys have no bias
            else:
                weights[f"{prefix}{attention}.{part}.{kind}"] = value
    weights["proj_out.weight"] = weights["model.decoder.embed_tokens.weight"]
    model = transformers.WhisperForConditionalGeneration(config)
    model.load_state_dict(weights)
    return model.eval()


@pytest.fixture(scope="session")
def whisper_at_hugging_face() -> Callable[[Path], Any]:
    return their_model
