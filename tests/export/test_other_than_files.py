"""A pipe, a broken link or a sparse terabyte in place of any file of a checkpoint is refused, not
waited for, not taken for absent and not read into memory."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from safetensors.torch import save_file

from dragoman.errors import DragomanError
from dragoman.export.checkpoints import open_checkpoint
from dragoman.export.families import FAMILIES
from dragoman.export.locating import locate_checkpoint
from dragoman.optimize.onnx_file import optimize_file
from dragoman.reference_model import ModelConfig, Transformer, save_checkpoint
from dragoman.reference_model.checkpoint import weight_shapes

from .families.ctranslate2_writer import write_text_model

BART: dict[str, Any] = {
    "model_type": "bart",
    "vocab_size": 9,
    "d_model": 8,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 1,
    "decoder_attention_heads": 1,
    "encoder_ffn_dim": 5,
    "decoder_ffn_dim": 5,
    "max_position_embeddings": 7,
}
WHISPER = BART | {
    "model_type": "whisper",
    "num_mel_bins": 80,
    "max_source_positions": 1500,
    "max_target_positions": 9,
    "pad_token_id": 1,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
OWN = ModelConfig(
    source_vocab_size=9,
    target_vocab_size=9,
    encoder_layers=1,
    decoder_layers=1,
    d_model=8,
    num_heads=1,
    d_ff=5,
    positions="learned",
    max_source_positions=7,
    max_target_positions=7,
)
SEQ2SEQ = {"pad_token_id": 1, "start_token_id": 2, "end_token_id": 3, "num_heads": 1}


def hugging_face(directory: Path, values: dict[str, Any], weights_file: str) -> None:
    family = FAMILIES[values["model_type"]]
    weights = {}
    for name, shape in weight_shapes(family.config(values)).items():
        extra = 2 if values["model_type"] == "bart" and "positions" in name else 0
        weights[family.weight_name(name)] = torch.ones(shape[0] + extra, *shape[1:])
    (directory / "config.json").write_text(json.dumps(values))
    if weights_file.endswith(".bin"):
        torch.save(weights, directory / weights_file)
    else:
        save_file(weights, directory / weights_file)


def ctranslate2(directory: Path) -> None:
    write_text_model(Transformer(OWN), directory)
    (directory / "source_vocabulary.json").unlink()
    (directory / "target_vocabulary.json").rename(directory / "shared_vocabulary.json")


def own(directory: Path) -> None:
    save_checkpoint(Transformer(OWN), directory)


MAKE: dict[str, Callable[[Path], None]] = {
    "bart": lambda d: hugging_face(d, BART, "model.safetensors"),
    "bart.bin": lambda d: hugging_face(d, BART, "pytorch_model.bin"),
    "whisper": lambda d: hugging_face(d, WHISPER, "model.safetensors"),
    "ctranslate2": ctranslate2,
    "own": own,
    "seq2seq": lambda d: None,
}
FILES = [
    ("bart", "config.json"),
    ("bart", "generation_config.json"),
    ("bart", "tokenizer_config.json"),
    ("bart", "tokenizer.json"),
    ("bart", "vocab.json"),
    ("bart", "merges.txt"),
    ("bart", "cl100k_base.tiktoken"),
    ("whisper", "multilingual.tiktoken"),
    ("bart", "model.safetensors"),
    ("bart.bin", "pytorch_model.bin"),
    ("bart.bin", "model.safetensors.index.json"),
    ("whisper", "preprocessor_config.json"),
    ("whisper", "tokenizer.json"),
    ("ctranslate2", "config.json"),
    ("ctranslate2", "model.bin"),
    ("ctranslate2", "shared_vocabulary.json"),
    ("ctranslate2", "tokenizer.json"),
    ("ctranslate2", "sentencepiece.model"),
    ("own", "config.json"),
    ("own", "model.safetensors"),
    ("own", "recipe.json"),
    ("own", "source_tokenizer.json"),
    ("seq2seq", "weights.pt"),
]


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link_to_nothing(path: Path) -> None:
    path.symlink_to("../blobs/missing")


def link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def sparse_terabyte(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


@pytest.fixture(autouse=True)
def neither_waits_nor_fills_memory() -> Iterator[None]:
    """What is wrong fails the test, in place of stopping the run."""

    def interrupt(*_: object) -> None:
        raise AssertionError("waits for a pipe")

    before = signal.signal(signal.SIGALRM, interrupt)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with Path("/proc/self/statm").open() as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 30), limits[1]))
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize("replace", [pipe, link_to_itself, link_to_nothing, sparse_terabyte])
@pytest.mark.parametrize(("kind", "name"), FILES)
def test_in_place_of_a_file_of_a_checkpoint(
    kind: str, name: str, replace: Callable[[Path], None], tmp_path: Path
) -> None:
    MAKE[kind](tmp_path)
    if name == "merges.txt":
        vocabulary = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        (tmp_path / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(vocabulary)}))
    if name == "vocab.json":
        (tmp_path / "merges.txt").touch()
    if name == "source_tokenizer.json":
        (tmp_path / "target_tokenizer.json").touch()
    if kind == "seq2seq":
        (tmp_path / "config.json").write_text(
            json.dumps(SEQ2SEQ | {"model_type": "pytorch-seq2seq"})
        )
    (tmp_path / name).unlink(missing_ok=True)
    replace(tmp_path / name)
    with pytest.raises(DragomanError, match=str(tmp_path)) as caught:
        open_checkpoint(locate_checkpoint(tmp_path))
    assert len(str(caught.value).splitlines()) == 1
    if replace in (link_to_itself, link_to_nothing):
        found = "expected a file, found a link that leads nowhere"
        assert str(caught.value) == f"{tmp_path / name}: {found}"


def test_links_to_nothing_that_need_not_lead_anywhere(tmp_path: Path) -> None:
    own(tmp_path)
    (tmp_path / "README.md").symlink_to("../blobs/missing")
    open_checkpoint(locate_checkpoint(tmp_path))


@pytest.mark.parametrize("replace", [pipe, sparse_terabyte])
@pytest.mark.parametrize("name", ["model.onnx", "weights.data"])
def test_in_place_of_an_onnx_file(
    name: str, replace: Callable[[Path], None], tmp_path: Path
) -> None:
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4], bytes(16), raw=True)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
        [weight],
    )
    path = tmp_path / "model.onnx"
    onnx.save_model(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]),
        path,
        save_as_external_data=True,
        location="weights.data",
        size_threshold=0,
    )
    assert (tmp_path / "weights.data").is_file()
    (tmp_path / name).unlink()
    replace(tmp_path / name)
    with pytest.raises(DragomanError, match=f"{name}: expected a (regular )?file"):
        optimize_file(path, tmp_path / "optimized.onnx")
    assert not (tmp_path / "optimized.onnx").exists()
