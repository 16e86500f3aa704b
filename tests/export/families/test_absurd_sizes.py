"""Nothing is built, computed or allocated from a size that `config.json` states before the tensors
in the file have been found to have it.

The sizes would take hours and terabytes otherwise; here the memory that PyTorch and Python ask for
is counted, in place of time.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dragoman.errors import DragomanError
from dragoman.export.checkpoints import read_checkpoint
from dragoman.export.families import ENCODER_FAMILIES, FAMILIES
from dragoman.export.families.encoders.family import EncoderFamily
from dragoman.export.families.encoders.loading import config_of, weight_name
from dragoman.reference_model import (
    ConfigError,
    EncoderModel,
    HeadConfig,
    ModelConfig,
    Transformer,
    save_checkpoint,
)
from dragoman.reference_model.checkpoint import weight_shapes

SHARED: dict[str, Any] = {
    "vocab_size": 19,
    "d_model": 8,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 5,
    "decoder_ffn_dim": 5,
    "max_position_embeddings": 7,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
CONFIGS: dict[str, dict[str, Any]] = {
    name: SHARED | {"model_type": name}
    for name in ("bart", "m2m_100", "marian", "mbart", "pegasus")
}
CONFIGS["whisper"] = {
    **{name: value for name, value in SHARED.items() if name != "max_position_embeddings"},
    "model_type": "whisper",
    "num_mel_bins": 4,
    "max_source_positions": 5,
    "max_target_positions": 6,
}
CONFIGS["t5"] = {
    "model_type": "t5",
    "vocab_size": 19,
    "num_layers": 2,
    "num_decoder_layers": 1,
    "d_model": 8,
    "num_heads": 2,
    "d_kv": 3,
    "d_ff": 5,
    "n_positions": 7,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
}
CONFIGS["mt5"] = CONFIGS["t5"] | {"model_type": "mt5", "feed_forward_proj": "relu"}
CONFIGS["gpt2"] = {
    "model_type": "gpt2",
    "vocab_size": 19,
    "n_embd": 8,
    "n_layer": 2,
    "n_head": 2,
    "n_inner": 5,
    "n_positions": 7,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
ENCODERS: dict[str, dict[str, Any]] = {
    name: {
        "model_type": name,
        "vocab_size": 19,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 5,
        "max_position_embeddings": 7,
        "type_vocab_size": 1,
        "pad_token_id": 1,
    }
    for name in ("bert", "roberta", "xlm-roberta")
}
ENCODERS["distilbert"] = {
    "model_type": "distilbert",
    "vocab_size": 19,
    "dim": 8,
    "n_layers": 2,
    "n_heads": 2,
    "hidden_dim": 5,
    "max_position_embeddings": 7,
    "pad_token_id": 0,
}
OWN = ModelConfig(
    source_vocab_size=9,
    target_vocab_size=11,
    encoder_layers=2,
    decoder_layers=1,
    d_model=8,
    num_heads=2,
    d_ff=5,
    max_source_positions=7,
    max_target_positions=6,
)
OF_TOKENS = {"pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"}
UNSTORED = {
    "max_position_embeddings",
    "n_positions",
    "max_source_positions",
    "max_target_positions",
    "relative_max_distance",
    "relative_attention_max_distance",
}
"""Sizes of tables that are computed: refused beyond 10^6, or where a table would be too large."""

ALLOWED = 1 << 20
SIZES = (100_000, 10**6, 2**31, 2**40, 2**64, 10**30)


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operators that give more memory than any tensor of these models has."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.device.type != "meta":
            size = result.untyped_storage().nbytes()
            assert size < ALLOWED, f"{func} gave {size} bytes"
        return result


@pytest.fixture(autouse=True)
def allocations() -> Iterator[None]:
    with Allocations():  # type: ignore[no-untyped-call]
        yield


def write_hugging_face(directory: Path, values: dict[str, Any]) -> None:
    """Random weights in the shapes that the configuration states."""
    family = FAMILIES[values["model_type"]]
    weights = {}
    for name, shape in weight_shapes(family.config(values)).items():
        extra = 2 if "positions.table" in name and values["model_type"] in ("bart", "mbart") else 0
        weight, theirs = torch.randn(shape[0] + extra, *shape[1:]), family.weight_name(name)
        transposed = theirs.removesuffix(".weight").endswith(family.transposed)
        weights[theirs] = weight.t().contiguous() if transposed and len(shape) == 2 else weight
    if values["model_type"] == "m2m_100":  # computes its positions from four columns on
        weights = {name: weight for name, weight in weights.items() if "positions" not in name}
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(values))
    save_file(weights, directory / "model.safetensors")


def write_encoder(directory: Path, values: dict[str, Any], family: EncoderFamily) -> None:
    """Random weights, in a table of positions that begins after the padding token's row."""
    head = HeadConfig(task="embedding")
    config = config_of(values, family, head, None, [], activation="gelu")
    names, first = weight_name(family, head), family.first_position(values)
    weights = {names(name): p.detach() for name, p in EncoderModel(config).named_parameters()}
    positions = names("encoder.embedding.positions.table")
    weights[positions] = torch.randn(first + len(weights[positions]), config.d_model)
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(values))
    save_file(weights, directory / "model.safetensors")


NO_SIZES = (0, -1, 10**12, "3", 3.5, None, True)


def check_no_sizes(directory: Path, values: dict[str, Any]) -> None:
    """Each value in place of each size is refused in words, or has no effect; null may also stand
    for the family's default."""
    whole = read_checkpoint(directory).model.config
    for field in (name for name, value in values.items() if type(value) is int):
        for value in () if field in OF_TOKENS else NO_SIZES:
            (directory / "config.json").write_text(json.dumps(values | {field: value}))
            try:
                config = read_checkpoint(directory).model.config
            except DragomanError as error:
                assert str(error), field
            else:
                assert value is None or weight_shapes(config) == weight_shapes(whole), (
                    field,
                    value,
                )


@pytest.mark.parametrize("name", CONFIGS)
def test_sizes_of_hugging_face(name: str, tmp_path: Path) -> None:
    values = CONFIGS[name]
    directory = tmp_path / name
    write_hugging_face(directory, values)
    read_checkpoint(directory)
    fields = [f for f, value in values.items() if type(value) is int and f not in OF_TOKENS]
    for field in fields:
        other = field.replace("encoder_", "decoder_")  # must be equal to be considered
        for size in SIZES:
            if size <= 10**6 and field in UNSTORED:
                continue
            changed = values | {field: size}
            if other in values and field.endswith(("_dim", "_heads")):
                changed[other] = size
            (directory / "config.json").write_text(json.dumps(changed))
            with pytest.raises(DragomanError) as caught:
                read_checkpoint(directory)
            assert len(str(caught.value)) < 10_000, field


@pytest.mark.parametrize("name", [*CONFIGS, *ENCODERS])
def test_no_sizes_of_hugging_face(name: str, tmp_path: Path) -> None:
    if name in CONFIGS:
        write_hugging_face(tmp_path / name, CONFIGS[name])
        check_no_sizes(tmp_path / name, CONFIGS[name])
    else:
        write_encoder(tmp_path / name, ENCODERS[name], ENCODER_FAMILIES[name])
        check_no_sizes(tmp_path / name, ENCODERS[name])


@pytest.mark.parametrize("name", CONFIGS)
def test_no_tokens_of_hugging_face(name: str) -> None:
    for field in OF_TOKENS:
        for value in NO_SIZES:
            with contextlib.suppress(ConfigError):
                FAMILIES[name].config(CONFIGS[name] | {field: value})


@pytest.mark.parametrize("positions", ["sinusoidal", "relative"])
def test_no_sizes_of_our_own(positions: Any, tmp_path: Path) -> None:
    config = OWN.replace(positions=positions)
    save_checkpoint(Transformer(config), tmp_path)
    check_no_sizes(tmp_path, config.to_dict())


@pytest.mark.parametrize("name", ["m2m_100", "marian", "pegasus"])
def test_tables_are_computed_once_their_width_is_known(name: str, tmp_path: Path) -> None:
    """The number of positions is within bounds, and no file states them."""
    directory = tmp_path / name
    write_hugging_face(directory, CONFIGS[name])
    wide = {"d_model": 512, "max_position_embeddings": 100_000}
    (directory / "config.json").write_text(json.dumps(CONFIGS[name] | wide))
    with pytest.raises(DragomanError) as caught:
        read_checkpoint(directory)
    assert "must have shape [19, 512], found [19, 8]" in "; ".join(caught.value.problems)


def test_a_bias_is_added_once_the_vocabulary_is_known(tmp_path: Path) -> None:
    directory = tmp_path / "bart"
    write_hugging_face(directory, CONFIGS["bart"])
    (directory / "config.json").write_text(json.dumps(CONFIGS["bart"] | {"vocab_size": 10**6}))
    with pytest.raises(DragomanError, match=r"must have shape \[1000000, 8\], found \[19, 8\]"):
        read_checkpoint(directory)


@pytest.mark.parametrize("relative", [False, True])
def test_sizes_of_our_own(relative: bool, tmp_path: Path) -> None:
    config = OWN.replace(positions="relative") if relative else OWN
    save_checkpoint(Transformer(config), tmp_path)
    read_checkpoint(tmp_path)
    values = config.to_dict()
    for field, value in values.items():
        if type(value) is not int or field.endswith("_id"):
            continue
        if field.startswith("relative") and not relative:
            continue
        for size in SIZES:
            if size <= 10**6 and field in UNSTORED:
                continue
            (tmp_path / "config.json").write_text(json.dumps(values | {field: size}))
            with pytest.raises(DragomanError) as caught:
                read_checkpoint(tmp_path)
            assert len(str(caught.value)) < 10_000, field


def test_more_layers_than_tensors_are_named(tmp_path: Path) -> None:
    save_checkpoint(Transformer(OWN), tmp_path)
    tensors = len(weight_shapes(OWN))
    values = OWN.to_dict()
    for size in (tensors + 1, 2**63 - 1):
        stated = values | {"encoder_layers": size, "decoder_layers": size}
        (tmp_path / "config.json").write_text(json.dumps(stated))
        with pytest.raises(DragomanError) as caught:
            read_checkpoint(tmp_path)
        for stack in ("encoder", "decoder"):
            assert (
                f"{stack}_layers: expected at most {tensors}, the number of weights in the file, "
                f"found {size}" in str(caught.value)
            )


def test_shapes_of_many_layers_are_those_of_the_model() -> None:
    config = OWN.replace(encoder_layers=3, decoder_layers=4, logits_bias=True)
    expected = {name: p.shape for name, p in Transformer(config).named_parameters()}
    assert weight_shapes(config) == expected
