"""Checkpoints with random damage are read, or refused with an error of ours in one line."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.errors import DragomanError
from dragoman.export.checkpoints import read_checkpoint
from dragoman.export.families import FAMILIES
from dragoman.reference_model import ModelConfig, Transformer, save_checkpoint
from dragoman.reference_model.checkpoint import weight_shapes

from ..mutations import mutated_archive, mutated_bytes, mutated_json
from .families.ctranslate2_writer import write_text_model

pytestmark = pytest.mark.filterwarnings("ignore")  # of PyTorch, about damaged pickles

MUTATIONS = 60
"""Of each file."""

CONFIG = ModelConfig(
    source_vocab_size=9,
    target_vocab_size=9,
    encoder_layers=1,
    decoder_layers=1,
    d_model=8,
    num_heads=2,
    d_ff=5,
    positions="learned",
    max_source_positions=7,
    max_target_positions=7,
)
SHARED: dict[str, Any] = {
    "vocab_size": 9,
    "d_model": 8,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 5,
    "decoder_ffn_dim": 5,
    "max_position_embeddings": 7,
    "activation_function": "gelu",
    "scale_embedding": True,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
T5: dict[str, Any] = {
    "vocab_size": 9,
    "d_model": 8,
    "num_heads": 2,
    "d_kv": 3,
    "d_ff": 5,
    "num_layers": 1,
    "n_positions": 7,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "feed_forward_proj": "relu",
}


def hugging_face(directory: Path, model_type: str, values: dict[str, Any]) -> None:
    family = FAMILIES[model_type]
    values = {"model_type": model_type, **values}
    shapes = weight_shapes(family.config(values))
    weights = {family.weight_name(name): torch.ones(shape) for name, shape in shapes.items()}
    (directory / "config.json").write_text(json.dumps(values))
    torch.save(weights, directory / "pytorch_model.bin")


def ctranslate2(directory: Path) -> None:
    write_text_model(Transformer(CONFIG), directory, numbers="int8")
    (directory / "source_vocabulary.json").unlink()
    (directory / "target_vocabulary.json").rename(directory / "shared_vocabulary.json")


MAKE: dict[str, Callable[[Path], None]] = {
    "marian": lambda directory: hugging_face(directory, "marian", SHARED),
    "m2m_100": lambda directory: hugging_face(directory, "m2m_100", SHARED),
    "t5": lambda directory: hugging_face(directory, "t5", T5),
    "ctranslate2": ctranslate2,
    "own": lambda directory: save_checkpoint(Transformer(CONFIG), directory),
}


@pytest.mark.parametrize("kind", MAKE)
def test_mutated_checkpoints(kind: str, tmp_path: Path) -> None:
    MAKE[kind](tmp_path)
    read_checkpoint(tmp_path)
    generator = random.Random(kind)
    for path in sorted(tmp_path.iterdir()):
        whole = path.read_bytes()
        refused = 0
        for _ in range(MUTATIONS):
            if path.suffix == ".json":
                damaged = mutated_json(whole.decode(), generator)
            elif whole.startswith(b"PK"):
                damaged = mutated_archive(whole, generator)
            else:
                damaged = mutated_bytes(whole, generator)
            path.write_bytes(damaged)
            try:
                read_checkpoint(tmp_path)
            except DragomanError as error:
                refused += 1
                assert len(str(error).splitlines()) == 1
                assert str(error).encode()
        assert refused > MUTATIONS // 4, path
        path.write_bytes(whole)
