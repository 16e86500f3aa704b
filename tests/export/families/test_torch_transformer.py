"""Models around torch.nn.Transformer: logits and greedy tokens are those of the module."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dragoman.export.families.state_dictionaries import load_torch_transformer
from dragoman.export.formats.json_files import read_json
from dragoman.reference_model import CheckpointError, ConfigError, Transformer, greedy_uncached, pad


def load_model(directory: Path) -> Transformer:
    """The model of a directory with a state dictionary."""
    return load_torch_transformer(directory, read_json(directory / "config.json"))


# PyTorch warns about modules that it cannot run as nested tensors.
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")

PAD, START, END = 1, 2, 3
SHAPES: dict[str, dict[str, Any]] = {
    "post-norm": {"d_model": 24, "heads": 3, "ffn": 40, "layers": (2, 2)},
    "norm first, no biases, gelu": {
        "d_model": 32,
        "heads": 4,
        "ffn": 56,
        "layers": (1, 3),
        "norm_first": True,
        "bias": False,
        "activation": "gelu",
    },
    "odd, learned positions, one table": {
        "d_model": 33,
        "heads": 1,
        "ffn": 19,
        "layers": (2, 1),
        "positions": "learned",
        "one_table": True,
        "scale": False,
    },
}
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())


class Owner(nn.Module):
    """The module with embeddings around it, as in PyTorch's tutorial and its variations."""

    def __init__(
        self,
        *,
        d_model: int,
        heads: int,
        ffn: int,
        layers: tuple[int, int],
        norm_first: bool = False,
        bias: bool = True,
        activation: str = "relu",
        positions: str = "sinusoidal",
        one_table: bool = False,
        scale: bool = True,
        source_size: int = 23,
        target_size: int = 29,
    ) -> None:
        super().__init__()
        self.scale = math.sqrt(d_model) if scale else 1.0
        self.net = nn.Transformer(
            d_model,
            heads,
            *layers,
            ffn,
            dropout=0.1,
            activation=activation,
            norm_first=norm_first,
            bias=bias,
            batch_first=True,
            layer_norm_eps=1e-3,
        )
        self.target_table = nn.Embedding(target_size, d_model)
        self.source_table = self.target_table if one_table else nn.Embedding(source_size, d_model)
        self.head = nn.Linear(d_model, target_size, bias=not one_table)
        if one_table:
            self.head.weight = self.target_table.weight
        if positions == "learned":
            self.position_table = nn.Parameter(torch.empty(1, 41, d_model))
        else:
            angle = torch.arange(50)[:, None] / 10000 ** (torch.arange(0, d_model, 2) / d_model)
            table = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)
            self.register_buffer("position_table", table[:, None])

    def embed(self, table: nn.Embedding, token: Tensor) -> Tensor:
        position_table = self.position_table.flatten(0, 1)[: token.shape[1]]
        embedded: Tensor = table(token) * self.scale + position_table
        return embedded

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        hidden = self.net(
            self.embed(self.source_table, source),
            self.embed(self.target_table, target),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(target.shape[1]),
            src_key_padding_mask=torch.zeros(source.shape).masked_fill(~source_mask, -math.inf),
            memory_key_padding_mask=torch.zeros(source.shape).masked_fill(~source_mask, -math.inf),
            tgt_is_causal=True,
        )
        logits: Tensor = self.head(hidden)
        return logits


def owner(shape: dict[str, Any], seed: int = 0) -> Owner:
    torch.manual_seed(seed)
    model = Owner(**shape).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                scale = 0.1 if name.endswith("bias") else 1.0
            else:
                scale = (3.0 if "in_proj" in name else 1.0) * parameter.shape[-1] ** -0.5
            parameter.copy_(torch.randn_like(parameter) * scale)
    return model


def config(shape: dict[str, Any], **changes: Any) -> dict[str, Any]:
    names = {
        "source_embedding": "source_table",
        "target_embedding": "target_table",
        "output": "head",
        "transformer": "net",
        "source_positions": "position_table",
    }
    return {
        "model_type": "torch.nn.Transformer",
        "num_heads": shape["heads"],
        "activation": shape.get("activation", "relu"),
        "norm_first": shape.get("norm_first", False),
        "layer_norm_eps": 1e-3,
        "scale_embedding": shape.get("scale", True),
        "positions": shape.get("positions", "sinusoidal"),
        "names": names,
        "pad_token_id": PAD,
        "start_token_id": START,
        "end_token_id": END,
    } | changes


def write(directory: Path, content: Any, values: dict[str, Any], file: str = "model.pt") -> Path:
    directory.mkdir(exist_ok=True)
    if file.endswith(".safetensors"):
        save_file(content, directory / file)
    else:
        torch.save(content, directory / file)
    (directory / "config.json").write_text(json.dumps(values))
    return directory


SOURCES = [[5, 6, 7, 8, 9, 10, 3], [4, 3], [11, 12, 13, 3], [3]]


@torch.inference_mode()
def plain_greedy(model: Owner, source: list[int], steps: int) -> list[int]:
    new: list[int] = []
    tokens, mask = pad([source], PAD)
    while len(new) < steps and END not in new:
        new.append(int(model(tokens, mask, torch.tensor([[START, *new]]))[0, -1].argmax()))
    return new


@each_shape
def test_logits_are_those_of_the_module(shape: dict[str, Any], tmp_path: Path) -> None:
    model = owner(shape)
    read = load_model(write(tmp_path, model.state_dict(), config(shape)))
    source, mask = pad(SOURCES, PAD)
    target = torch.randint(4, 29, (len(SOURCES), 9), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        found, expected = read(source, mask, target), model(source, mask, target)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    one = bool(shape.get("one_table"))
    assert read.config.tie_source_target == read.config.tie_target_output == one
    assert not read.training


@each_shape
def test_the_runtime_gives_the_tokens_of_a_plain_loop(
    shape: dict[str, Any], tmp_path: Path, runtime_greedy: Callable[..., list[list[int]]]
) -> None:
    model = owner(shape)
    read = load_model(write(tmp_path / "model", model.state_dict(), config(shape)))
    expected = [plain_greedy(model, source, 15) for source in SOURCES]
    assert len({tuple(row) for row in expected}) > 2
    assert greedy_uncached(read, SOURCES, 15) == expected
    assert runtime_greedy(read, tmp_path, "cpu", SOURCES, 15) == expected


SHAPE = SHAPES["post-norm"]


def test_where_weights_may_be(tmp_path: Path) -> None:
    weights = owner(SHAPE).state_dict()
    plain = load_model(write(tmp_path / "pt", weights, config(SHAPE)))
    expected = dict(plain.named_parameters())
    training = {"epoch": 3, "model": weights, "optimizer": {"state": {}, "param_groups": []}}
    several = {"model": weights, "average": {n: t * 0 for n, t in weights.items()}}
    for directory in (
        write(tmp_path / "a", weights, config(SHAPE), "model.safetensors"),
        write(tmp_path / "b", training, config(SHAPE), "checkpoint.zip"),
        write(tmp_path / "c", several, config(SHAPE, state_dict="model"), "last.pth"),
    ):
        read = load_model(directory)
        for name, parameter in read.named_parameters():
            assert torch.equal(parameter, expected[name]), name
    write(tmp_path / "c", weights, config(SHAPE, weights="second.pt"), "second.pt")
    load_model(tmp_path / "c")
    for values, message in (
        (config(SHAPE), "expected one file of weights .* found last.pth, second.pt"),
        (config(SHAPE, weights="last.pth"), "one of model, average, found None"),
        (config(SHAPE, weights="../a/model.safetensors"), "weights: expected a file in it"),
        (config(SHAPE, weights="none.pt"), "weights: expected a file in it"),
    ):
        (tmp_path / "c" / "config.json").write_text(json.dumps(values))
        with pytest.raises(CheckpointError, match=message):
            load_model(tmp_path / "c")


class Trap:
    def __reduce__(self) -> Any:
        return (print, ("executed",))


def test_nothing_is_executed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, {"weight": Trap()}, config(SHAPE))
    with pytest.raises(CheckpointError, match="nothing else is loaded"):
        load_model(tmp_path)
    assert capsys.readouterr().out == ""
    for content in ([1, 2], {}, {"a": torch.ones(2), "b": 3}):
        write(tmp_path, content, config(SHAPE))
        with pytest.raises(CheckpointError, match="expected a dictionary of tensors by name"):
            load_model(tmp_path)


def test_stacks_need_no_names(tmp_path: Path) -> None:
    """Neither of a whole transformer nor of a separate encoder and decoder."""
    model = owner(SHAPE)
    values = config(SHAPE)
    del values["names"]["transformer"]
    expected = dict(
        load_model(write(tmp_path / "a", model.state_dict(), values)).named_parameters()
    )
    renamed = {
        name.replace("net.encoder", "module.reader").replace("net.decoder", "writer"): tensor
        for name, tensor in model.state_dict().items()
    }
    for names in ({}, {"encoder": "module.reader", "decoder": "writer"}):
        values["names"] |= names
        read = load_model(write(tmp_path / "b", renamed, values))
        for name, parameter in read.named_parameters():
            assert torch.equal(parameter, expected[name]), name


def test_positions_computed(tmp_path: Path) -> None:
    model = owner(SHAPE)
    values = config(SHAPE, max_positions=50, ignored=["position_table"])
    del values["names"]["source_positions"]
    read = load_model(write(tmp_path, model.state_dict(), values))
    assert (read.config.positions, read.config.max_target_positions) == ("sinusoidal", 50)
    expected = [plain_greedy(model, source, 15) for source in SOURCES]
    assert greedy_uncached(read, SOURCES, 15) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"transformer": "other"}, r"names.encoder: .* one of net.encoder; found 'other.encoder'"),
        ({"decoder": "net"}, r"names.decoder: .* one of net.decoder; found 'net'"),
        (
            {"source_embedding": "src", "output": "source_tables"},
            r"names.source_embedding: expected a weight of shape \[\*, 24\], one of "
            r"position_table, target_table.weight, source_table.weight, head.weight; found 'src'"
            r".*names.output: expected",
        ),
        ({"source_positions": "nowhere"}, "names.source_positions: expected"),
        ({"target_embedding": "source_table"}, r"head.bias.*unknown weight target_table.weight"),
    ],
)
def test_names_that_are_not_there(changes: dict[str, str], message: str, tmp_path: Path) -> None:
    values = config(SHAPE)
    values["names"] |= changes
    write(tmp_path, owner(SHAPE).state_dict(), values)
    with pytest.raises(CheckpointError) as caught:
        load_model(tmp_path)
    assert caught.match(message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": None}, "num_heads"),
        ({"num_heads": 5}, "d_model 24 is not a multiple of num_heads 5"),
        ({"num_heads": True}, "num_heads: expected an integer, found True"),
        ({"norm_frist": True}, "unknown field 'norm_frist', expected one of .*norm_first"),
        ({"activation": "sigmoid"}, "activation: expected one of relu, .* found 'sigmoid'"),
        ({"positions": "rotary"}, "positions: expected 'sinusoidal' or 'learned'"),
        ({"names": {"sauce": "a"}}, "names: expected names of .*, found 'sauce'"),
        ({"names": {"output": 3}}, "names: expected names of .*, found 'output': 3"),
        ({"names": "net"}, "names: expected an object, found 'net'"),
        ({"ignored": [1]}, "ignored: expected names"),
        ({"scale_embedding": "yes"}, "scale_embedding: expected true or false"),
        ({"pad_token_id": 23}, "pad_token_id must be in both vocabularies"),
    ],
)
def test_fields_that_are_wrong(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    write(tmp_path, owner(SHAPE).state_dict(), config(SHAPE, **changes))
    with pytest.raises(ConfigError, match=message):
        load_model(tmp_path)


def test_fields_that_are_missing(tmp_path: Path) -> None:
    write(tmp_path, owner(SHAPE).state_dict(), {"num_heads": 3})
    with pytest.raises(ConfigError) as caught:
        load_model(tmp_path)
    assert "missing field 'pad_token_id'" in str(caught.value)
    assert "missing field 'end_token_id'" in str(caught.value)


def test_all_wrong_weights_at_once(tmp_path: Path) -> None:
    weights = owner(SHAPE).state_dict()
    weights["net.encoder.layers.0.self_attn.in_proj_bias"] = torch.ones(71)
    weights["net.decoder.layers.1.linear2.weight"] = torch.ones(24, 41)
    weights["net.decoder.layers.1.norm3.bias"] *= math.nan
    weights["net.decoder.layers.1.norm4.bias"] = torch.ones(24)
    del weights["net.decoder.layers.0.multihead_attn.in_proj_weight"]
    write(tmp_path, weights, config(SHAPE))
    with pytest.raises(CheckpointError) as caught:
        load_model(tmp_path)
    # Without it, the stack cannot be recognised as a decoder.
    assert "names.decoder: expected a module that has" in str(caught.value)
    weights["net.decoder.layers.0.multihead_attn.in_proj_weight"] = torch.ones(72, 24)
    write(tmp_path, weights, config(SHAPE))
    with pytest.raises(CheckpointError) as caught:
        load_model(tmp_path)
    for expected in (
        "net.encoder.layers.0.self_attn.in_proj_bias must stack three parts of equal size, "
        "found [71]",
        "missing weight net.encoder.layers.0.self_attn.in_proj_bias (key)",
        "net.decoder.layers.1.linear2.weight must have shape [24, 40], found [24, 41]",
        "net.decoder.layers.1.norm3.bias has 24 of 24 values that are NaN or infinite",
        "unknown weight net.decoder.layers.1.norm4.bias",
    ):
        assert expected in str(caught.value)
