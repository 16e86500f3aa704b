"""The tutorial's Transformer, written here from its description, gives the same logits."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.export.checkpoints import read_checkpoint
from dragoman.export.families.state_dictionaries import load_pytorch_seq2seq
from dragoman.export.formats.json_files import read_json
from dragoman.reference_model import CheckpointError, ConfigError, Transformer, pad


def load_model(directory: Path) -> Transformer:
    """The model of a directory with a state dictionary."""
    return load_pytorch_seq2seq(directory, read_json(directory / "config.json"))


Weights = dict[str, Tensor]
CONFIG = {
    "model_type": "pytorch-seq2seq",
    "num_heads": 3,
    "pad_token_id": 1,
    "start_token_id": 2,
    "end_token_id": 3,
}
SOURCE, TARGET, SIZE, INNER, POSITIONS = 19, 23, 33, 21, 17


def random_weights() -> Weights:
    """A model of 2 encoder layers and 1 decoder layer."""
    weights: Weights = {}

    def linear(name: str, out: int, inner: int) -> None:
        weights[f"{name}.weight"] = torch.randn(out, inner) * inner**-0.5 * 1.5
        weights[f"{name}.bias"] = torch.randn(out) * 0.1

    def norm(name: str) -> None:
        weights[f"{name}.weight"] = torch.randn(SIZE)
        weights[f"{name}.bias"] = torch.randn(SIZE) * 0.1

    torch.manual_seed(0)
    for stack, layers, size in (("encoder", 2, SOURCE), ("decoder", 1, TARGET)):
        weights[f"{stack}.tok_embedding.weight"] = torch.randn(size, SIZE) * 0.2
        weights[f"{stack}.pos_embedding.weight"] = torch.randn(POSITIONS, SIZE)
        for i in range(layers):
            layer = f"{stack}.layers.{i}"
            norm(f"{layer}.self_attn_layer_norm")
            norm(f"{layer}.ff_layer_norm")
            attentions = ["self_attention"]
            if stack == "decoder":
                norm(f"{layer}.enc_attn_layer_norm")
                attentions.append("encoder_attention")
            for attention in attentions:
                for role in "qkvo":
                    linear(f"{layer}.{attention}.fc_{role}", SIZE, SIZE)
            linear(f"{layer}.positionwise_feedforward.fc_1", INNER, SIZE)
            linear(f"{layer}.positionwise_feedforward.fc_2", SIZE, INNER)
    linear("decoder.fc_out", TARGET, SIZE)
    return weights


def logits(weights: Weights, source: Tensor, target: Tensor) -> Tensor:
    """The logits of one sequence: source [S], target [T] -> [T, V]"""

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def add(x: Tensor, y: Tensor, name: str) -> Tensor:
        return F.layer_norm(x + y, (SIZE,), weights[f"{name}.weight"], weights[f"{name}.bias"])

    def attend(x: Tensor, memory: Tensor, name: str, *, causal: bool = False) -> Tensor:
        q, k, v = (
            linear(y, f"{name}.fc_{role}").reshape(-1, 3, 11).transpose(0, 1)
            for y, role in ((x, "q"), (memory, "k"), (memory, "v"))
        )
        scores = q @ k.mT / math.sqrt(11)
        if causal:
            scores = scores.masked_fill(~torch.ones(scores.shape[1:]).tril().bool(), -math.inf)
        return linear((scores.softmax(-1) @ v).transpose(0, 1).flatten(1), f"{name}.fc_o")

    def forward(x: Tensor, layer: str) -> Tensor:
        name = f"{layer}.positionwise_feedforward"
        x = add(
            x, linear(linear(x, f"{name}.fc_1").relu(), f"{name}.fc_2"), f"{layer}.ff_layer_norm"
        )
        return x

    def embed(token: Tensor, stack: str) -> Tensor:
        table = weights[f"{stack}.tok_embedding.weight"][token] * math.sqrt(SIZE)
        return table + weights[f"{stack}.pos_embedding.weight"][: len(token)]

    x = embed(source, "encoder")
    for i in range(2):
        layer = f"encoder.layers.{i}"
        x = add(x, attend(x, x, f"{layer}.self_attention"), f"{layer}.self_attn_layer_norm")
        x = forward(x, layer)
    y, layer = embed(target, "decoder"), "decoder.layers.0"
    y = add(
        y, attend(y, y, f"{layer}.self_attention", causal=True), f"{layer}.self_attn_layer_norm"
    )
    y = add(y, attend(y, x, f"{layer}.encoder_attention"), f"{layer}.enc_attn_layer_norm")
    return linear(forward(y, layer), "decoder.fc_out")


def write(directory: Path, weights: Weights, **changes: object) -> Path:
    torch.save(weights, directory / "tut6-model.pt")
    (directory / "config.json").write_text(json.dumps(CONFIG | changes))
    return directory


@pytest.mark.parametrize("prefix", ["", "module."])
def test_logits(prefix: str, tmp_path: Path) -> None:
    weights = random_weights()
    read = load_model(write(tmp_path, {prefix + name: tensor for name, tensor in weights.items()}))
    sources = [[2, 5, 6, 7, 8, 9, 3], [3], [2, 4, 3]]
    target = torch.tensor([2, 4, 9, 16, 7, 3])
    with torch.inference_mode():
        found = read(*pad(sources, 1), target.expand(3, -1))
    for row, source in zip(found, sources, strict=True):
        expected = logits(weights, torch.tensor(source), target)
        torch.testing.assert_close(row, expected, atol=1e-4, rtol=1e-4)


def test_a_directory_is_known_by_its_model_type(tmp_path: Path) -> None:
    opened = read_checkpoint(write(tmp_path, random_weights()))
    assert (opened.model.config.d_model, opened.tokenizers) == (SIZE, None)


def test_what_is_wrong(tmp_path: Path) -> None:
    weights = random_weights()
    del weights["decoder.layers.0.encoder_attention.fc_k.bias"]
    weights["decoder.layers.0.ff_layer_norm.weight"] = torch.ones(3)
    weights["extra"] = torch.ones(3)
    with pytest.raises(CheckpointError) as caught:
        load_model(write(tmp_path, weights))
    for expected in (
        "missing weight decoder.layers.0.encoder_attention.fc_k.bias",
        "decoder.layers.0.ff_layer_norm.weight must have shape [33], found [3]",
        "unknown weight extra",
    ):
        assert expected in str(caught.value)
    del weights["decoder.pos_embedding.weight"]
    with pytest.raises(CheckpointError, match=r"missing weight decoder\.pos_embedding\.weight"):
        load_model(write(tmp_path, weights))
    del weights["encoder.tok_embedding.weight"]
    with pytest.raises(CheckpointError, match=r"one encoder\.tok_embedding\.weight, found 0"):
        load_model(write(tmp_path, weights))
    with pytest.raises(ConfigError, match="unknown field 'activation'"):
        load_model(write(tmp_path, weights, activation="gelu"))
