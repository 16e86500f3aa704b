"""A damaged or unsupported CTranslate2 model is one clear error."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.errors import DragomanError
from dragoman.export.families.ctranslate2 import load_ctranslate2
from dragoman.reference_model import CheckpointError, ConfigError, ModelConfig, Transformer

from ...random_weights import random_transformer
from .ctranslate2_writer import flag, model_file, text, write_text_model

Damage = Callable[[bytes], bytes]


@pytest.fixture
def model() -> Transformer:
    config = ModelConfig(
        source_vocab_size=7,
        target_vocab_size=9,
        encoder_layers=1,
        decoder_layers=1,
        d_model=8,
        num_heads=2,
        d_ff=6,
        positions="learned",
        max_source_positions=4,
        max_target_positions=5,
    )
    return random_transformer(config, seed=0)


@pytest.fixture
def directory(model: Transformer, tmp_path: Path) -> Path:
    write_text_model(model, tmp_path)
    return tmp_path


def test_cut_short_anywhere(directory: Path) -> None:
    path = directory / "model.bin"
    whole = path.read_bytes()
    for size in [*range(300), *range(300, len(whole), 61), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=re.escape(str(path))):
            load_ctranslate2(directory)


def test_any_byte_of_the_header_changed(directory: Path) -> None:
    """Each change is an error, unless it only alters a weight's values or name."""
    path = directory / "model.bin"
    whole = path.read_bytes()
    for position in [*range(100), *range(100, len(whole), 151)]:
        path.write_bytes(whole[:position] + b"\xff" + whole[position + 1 :])
        try:
            load_ctranslate2(directory)
        except DragomanError as error:
            assert str(error)


def replaced(old: bytes, new: bytes) -> Damage:
    def replace(data: bytes) -> bytes:
        assert old in data
        return data.replace(old, new, 1)

    return replace


NAME = text("decoder/embeddings/weight")
DAMAGES: dict[str, tuple[Damage, str]] = {
    "another file": (lambda data: b"PK\3\4" + data, "version 1 to 6, found 67324752"),
    "later version": (lambda data: b"\7\0\0\0" + data[4:], "version 1 to 6, found 7"),
    "something after the end": (lambda data: data + b"xyz", "3 bytes follow the end"),
    "a size beyond memory": (
        replaced(
            NAME + struct.pack("<BII", 2, 9, 8), NAME + struct.pack("<BII", 2, 2**32 - 1, 2**31)
        ),
        "cannot have 288 bytes",
    ),
    "a size beyond the file": (
        replaced(
            NAME + struct.pack("<BIIBI", 2, 9, 8, 0, 288),
            NAME + struct.pack("<BIIBI", 2, 2**20, 2**8, 0, 2**30),
        ),
        "decoder/embeddings/weight needs 1073741824 bytes at [0-9]+, and the file ends at",
    ),
    "more axes than PyTorch has": (
        replaced(
            NAME + struct.pack("<BII", 2, 9, 8), NAME + struct.pack("<B255I", 255, *[1] * 255)
        ),
        "must have at most 8 axes, found 255",
    ),
    "sizes beyond 64 bits, and none": (
        replaced(
            NAME + struct.pack("<BIIBI", 2, 9, 8, 0, 288),
            NAME + struct.pack("<BIIIIBI", 4, 0, *[2**32 - 1] * 3, 0, 0),
        ),
        "must have numbers, found the shape",
    ),
    "an unknown kind": (
        replaced(NAME + struct.pack("<BIIB", 2, 9, 8, 0), NAME + struct.pack("<BIIB", 2, 9, 8, 6)),
        "known data type, found 6",
    ),
    "a name twice": (
        replaced(
            text("decoder/layer_0/ffn/linear_0/bias"), text("decoder/layer_0/ffn/layer_norm/beta")
        ),
        "layer_norm/beta is stored twice",
    ),
    "a name that is not a string": (
        replaced(b"layer_0/ffn", b"\xff\xfe\xfd\xfcr_0/ffn"),
        "must be UTF-8",
    ),
    "a name without end": (replaced(NAME, NAME[:-1] + b"!"), "must end with a zero byte"),
    "an alias of nothing": (
        replaced(
            text("decoder/projection/weight") + NAME,
            text("decoder/projection/weight") + NAME.replace(b"s/w", b"z/w"),
        ),
        "expected each alias to be a new name of a variable, .*: decoder/projection/weight",
    ),
    "another specification": (
        replaced(text("TransformerSpec"), text("TransformerDecoderSpec")),
        "expected TransformerSpec 2 to 7, .* found 'TransformerDecoderSpec'",
    ),
    "a later revision": (
        replaced(text("TransformerSpec") + b"\7", text("TransformerSpec") + b"\x08"),
        "found 'TransformerSpec' in revision 8",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named(damage: str, directory: Path) -> None:
    change, message = DAMAGES[damage]
    path = directory / "model.bin"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(CheckpointError, match=message):
        load_ctranslate2(directory)


def test_the_first_version_without_weights(directory: Path) -> None:
    for side in "st":
        name = {"s": "source", "t": "target"}[side]
        (directory / f"{name}_vocabulary.json").write_text(f'["<s>", "</s>", "{side}"]')
    (directory / "model.bin").write_bytes(model_file({}, {}, version=1))
    with pytest.raises(CheckpointError, match="missing weight encoder/embeddings_0/weight"):
        load_ctranslate2(directory)


def array(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


ATTENTION = "decoder/layer_0/self_attention"
REFUSED: dict[str, tuple[dict[str, torch.Tensor], str]] = {
    "relative": (
        {f"{ATTENTION}/relative_position_keys": array(3, 4)},
        rf"unsupported option relative_position_keys \({ATTENTION}/relative_position_keys\)",
    ),
    "relative as in T5": (
        {f"{ATTENTION}/relative_attention_bias": array(8, 2)},
        "option relative_attention_bias",
    ),
    "rotary": ({f"{ATTENTION}/rotary_dim": torch.tensor(0).int()}, "option rotary_dim"),
    "multi-query": (
        {f"{ATTENTION}/num_heads_kv": torch.tensor(1).int()},
        "option num_heads_kv",
    ),
    "flag of multi-query": ({"encoder/multi_query_attention": flag(True)}, "multi_query_attention"),
    "alibi": ({"decoder/alibi": flag(True)}, "unsupported option alibi"),
    "norms of queries": ({f"{ATTENTION}/q_norm/gamma": array(4)}, "unsupported option q_norm"),
    "sources with features": ({"encoder/embeddings_1/weight": array(3, 8)}, "embeddings_1"),
    "a later option": ({"decoder/telepathy": flag(True)}, "unsupported option telepathy"),
    "activation": ({"decoder/activation": torch.tensor(4).char()}, "found gelu_sigmoid"),
    "4 bits": (
        {"decoder/layer_0/ffn/linear_0/weight": torch.ones(6, 1).int()},
        r"4 bits \(AWQ\)",
    ),
    "no scale": (
        {"decoder/layer_0/ffn/linear_0/weight": torch.ones(6, 8).char()},
        "has no decoder/layer_0/ffn/linear_0/weight_scale",
    ),
    "a scale of other rows": (
        {
            "decoder/layer_0/ffn/linear_0/weight": torch.ones(6, 8).char(),
            "decoder/layer_0/ffn/linear_0/weight_scale": array(5),
        },
        r"weight_scale must be one number or 6, found \[5\]",
    ),
    "a scale of zero": (
        {
            "decoder/layer_0/ffn/linear_0/weight": torch.ones(6, 8).char(),
            "decoder/layer_0/ffn/linear_0/weight_scale": torch.zeros(6),
        },
        "weight_scale must be positive and finite",
    ),
    "different heads": (
        {"encoder/num_heads": torch.tensor(4).short()},
        "num_heads must be equal in both stacks, found 4 and 2",
    ),
    **{
        f"{value} heads": (
            dict.fromkeys(("encoder/num_heads", "decoder/num_heads"), torch.tensor(value)),
            f"num_heads must be an integer of at least 1, found {value}",
        )
        for value in (math.inf, -math.inf, 2.5)
    },
    # NaN differs from itself.
    "NaN heads": (
        dict.fromkeys(("encoder/num_heads", "decoder/num_heads"), torch.tensor(math.nan)),
        "num_heads must be an integer of at least 1, found nan",
    ),
    "a size of heads that is not finite": (
        {f"{ATTENTION}/head_dim": torch.tensor(math.inf)},
        "head_dim must be an integer of at least 1, found inf",
    ),
    "one number, quantized": (
        {"decoder/x_scale": torch.tensor(3).short(), "decoder/x_scale_scale": array(2)},
        "decoder/x_scale must be floating point, found one number in torch.int16",
    ),
    "different orders": ({"encoder/pre_norm": flag(True)}, "pre_norm must be equal"),
}


@pytest.mark.parametrize("refused", REFUSED)
def test_other_kinds_of_models_are_refused(
    refused: str, model: Transformer, tmp_path: Path
) -> None:
    options, message = REFUSED[refused]
    write_text_model(model, tmp_path, options=options)
    with pytest.raises(CheckpointError, match=message):
        load_ctranslate2(tmp_path)


def test_harmless_options_are_passed_over(model: Transformer, tmp_path: Path) -> None:
    options = {
        f"{ATTENTION}/num_heads_kv": torch.tensor(2).int(),
        "decoder/telepathy": flag(False),
        "decoder/alignment_layer": torch.tensor(0).short(),
    }
    write_text_model(model, tmp_path, options=options)
    load_ctranslate2(tmp_path)


def test_all_wrong_weights_at_once(model: Transformer, tmp_path: Path) -> None:
    options = {
        "encoder/layer_0/self_attention/linear_0/weight": array(25, 8),
        "decoder/layer_0/ffn/linear_1/weight": array(6, 8),
        "decoder/layer_0/ffn/layer_norm/gamma": array(8) * torch.nan,
        "decoder/strange/weight": array(2),
    }
    write_text_model(
        model, tmp_path, options=options, without=("decoder/layer_0/attention/linear_2",)
    )
    with pytest.raises(CheckpointError) as caught:
        load_ctranslate2(tmp_path)
    message = str(caught.value)
    for expected in (
        "encoder/layer_0/self_attention/linear_0/weight must stack query, key, value of equal "
        "size, found [25, 8]",
        "decoder/layer_0/ffn/linear_1/weight must have shape [8, 6], found [6, 8]",
        "decoder/layer_0/ffn/layer_norm/gamma has 8 of 8 values that are NaN or infinite",
        "unknown weight decoder/strange/weight",
        "missing weight decoder/layer_0/attention/linear_2/weight",
        "missing weight encoder/layer_0/self_attention/linear_0/weight (query)",
    ):
        assert expected in message


@pytest.mark.parametrize(
    "without", ["decoder/embeddings", "encoder/embeddings_0", "decoder/layer_0/ffn"]
)
def test_a_missing_weight_that_sizes_are_derived_from(
    without: str, model: Transformer, tmp_path: Path
) -> None:
    model = random_transformer(model.config.replace(tie_target_output=False), seed=0)
    write_text_model(model, tmp_path, without=(without,))
    with pytest.raises(CheckpointError, match=f"missing weight {without}"):
        load_ctranslate2(tmp_path)


def test_a_layer_of_an_absurd_number(model: Transformer, tmp_path: Path) -> None:
    write_text_model(model, tmp_path, options={"decoder/layer_4000000000/x/weight": array(2)})
    with pytest.raises(CheckpointError, match="unknown weight decoder/layer_4000000000/x/weight"):
        load_ctranslate2(tmp_path)


def test_heads_that_do_not_divide_the_size(model: Transformer, tmp_path: Path) -> None:
    heads = torch.tensor(3).short()
    write_text_model(
        model, tmp_path, options={"encoder/num_heads": heads, "decoder/num_heads": heads}
    )
    with pytest.raises(ConfigError, match="d_model 8 is not a multiple of num_heads 3"):
        load_ctranslate2(tmp_path)


def test_vocabularies(directory: Path) -> None:
    path = directory / "target_vocabulary.json"

    def written(tokens: Any) -> None:
        path.write_text(json.dumps(tokens))

    written([f"t{i}" for i in range(7)])
    with pytest.raises(CheckpointError, match="has 9 rows and its vocabulary 7 tokens"):
        load_ctranslate2(directory)
    written(["a"] * 9)
    with pytest.raises(CheckpointError, match=r"the token 't1' in the vocabulary.* 't2'"):
        load_ctranslate2(directory)
    for wrong in ({"a": 1}, [1, 2], "abc"):
        written(wrong)
        with pytest.raises(CheckpointError, match="expected a list of tokens"):
            load_ctranslate2(directory)
    path.write_text('["a", "\\ud800"]')
    with pytest.raises(
        CheckpointError, match=r"target_vocabulary\.json: .*half of a surrogate pair"
    ):
        load_ctranslate2(directory)
    path.write_bytes(b"[\xff]")
    with pytest.raises(CheckpointError, match="expected a list of tokens"):
        load_ctranslate2(directory)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"expected shared_vocabulary\.json, or"):
        load_ctranslate2(directory)


@pytest.mark.parametrize("d_model", [1, 2, 3])
def test_too_few_columns_for_positions_that_are_computed(d_model: int, tmp_path: Path) -> None:
    config = ModelConfig(
        source_vocab_size=7,
        target_vocab_size=9,
        encoder_layers=1,
        decoder_layers=1,
        d_model=d_model,
        num_heads=1,
        d_ff=6,
        positions="learned",
    )
    write_text_model(random_transformer(config, seed=0), tmp_path, without=("encoder/position",))
    with pytest.raises(ConfigError, match=f"d_model: expected at least 4, .* found {d_model}"):
        load_ctranslate2(tmp_path)


def test_files_missing(directory: Path) -> None:
    (directory / "config.json").write_text("[")
    with pytest.raises(CheckpointError, match="found text that is not JSON"):
        load_ctranslate2(directory)
    (directory / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_ctranslate2(directory)
    (directory / "model.bin").unlink()
    with pytest.raises(CheckpointError, match=r"model\.bin: expected a file, found none"):
        load_ctranslate2(directory)
