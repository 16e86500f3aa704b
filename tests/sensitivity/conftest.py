"""Small models of every kind, their neutral bundles, and bundles that keep some products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from dragoman.export import export_bundle
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import HeadConfig, ModelConfig, ReferenceModel, make_model
from dragoman.runtime import Bundle, read_bundle
from dragoman.runtime.format.manifest import Precision

from ..random_weights import random_transformer

COMMON: dict[str, object] = {
    "d_model": 32,
    "num_heads": 2,
    "d_ff": 64,
    "norm_order": "pre",
    "dropout": 0.0,
}
BOTH = COMMON | {
    "source_vocab_size": 31,
    "target_vocab_size": 37,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "max_source_positions": 16,
    "max_target_positions": 12,
}
ENCODER = COMMON | {
    "source_vocab_size": 31,
    "target_vocab_size": 0,
    "encoder_layers": 2,
    "decoder_layers": 0,
    "max_source_positions": 16,
    "max_target_positions": 0,
    "positions": "learned",
    "pad_token_id": 0,
}
DECODER = COMMON | {
    "source_vocab_size": 0,
    "target_vocab_size": 37,
    "encoder_layers": 0,
    "decoder_layers": 2,
    "max_source_positions": 0,
    "max_target_positions": 16,
    "positions": "learned",
    "pad_token_id": 0,
}
KINDS: dict[str, dict[str, object]] = {
    "encoder-decoder": BOTH,
    "nothing tied": BOTH | {"tie_target_output": False},
    "all tied": BOTH | {"source_vocab_size": 37, "tie_source_target": True},
    "embeddings": ENCODER | {"head": HeadConfig(task="embedding")},
    "labels": ENCODER
    | {"head": HeadConfig(task="sequence-classification", dense_size=32, labels=("a", "b", "c"))},
    "masks": ENCODER | {"head": HeadConfig(task="masked-language-model", dense_size=32)},
    "decoder-only": DECODER,
}


class Trained(NamedTuple):
    """A model, and its neutral bundle in fp32."""

    model: ReferenceModel
    neutral: Bundle


Optimize = Callable[..., Bundle]


def small_model(kind: str) -> ReferenceModel:
    config = ModelConfig(**KINDS[kind])  # type: ignore[arg-type]
    if config.has_encoder and config.has_decoder:
        return random_transformer(config, seed=2, feed_forward_scale=2.0)
    torch.manual_seed(2)
    return make_model(config).eval()


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    """By its kind; exported once."""
    known: dict[str, Trained] = {}

    def make(kind: str) -> Trained:
        if kind not in known:
            directory = tmp_path_factory.mktemp("neutral")
            model = small_model(kind)
            known[kind] = Trained(model, export_bundle(model, directory, name="small"))
        return known[kind]

    return make


@pytest.fixture(scope="session")
def optimized(tmp_path_factory: pytest.TempPathFactory) -> Optimize:
    """A bundle for a target, made once for the same options."""
    known: dict[object, Bundle] = {}

    def make(
        neutral: Bundle,
        precision: Precision = "int8",
        *,
        target: str = "cpu",
        keep_fp32: Sequence[str] = (),
        calibration: Sequence[list[int]] | None = None,
    ) -> Bundle:
        key = (neutral.directory, precision, target, str(calibration), *keep_fp32)
        if key not in known:
            new: Path = tmp_path_factory.mktemp("optimized")
            optimize_bundle(
                neutral,
                new,
                target=target,
                precision=precision,
                keep_fp32=keep_fp32,
                calibration=calibration,
            )
            known[key] = read_bundle(new)
        return known[key]

    return make
