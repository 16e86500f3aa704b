"""Shared by the tests of the runtime: a hand-written bundle, two exported models, an oracle."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from dragoman.export import TokenizerFiles, export_bundle
from dragoman.reference_model import ModelConfig, Transformer, pad
from dragoman.runtime import Model, load

from ..random_weights import random_transformer

CONTENTS = {
    "encoder.onnx": b"\x12\x05coder",  # ONNX that says nothing but its producer's name
    "decoder.onnx": b"\x12\x09e decoder",
    "data/weights.bin": b"0123",
}


class SetAfter:
    """An event that is set once it has been asked this many times."""

    def __init__(self, times: int) -> None:
        self.left, self.asked = times, 0

    def is_set(self) -> bool:
        self.asked += 1
        self.left -= 1
        return self.left < 0


def tensor(role: str, dtype: str, *shape: int | str, layer: int | None = None) -> dict[str, Any]:
    name = role if layer is None else f"{role}_{layer}"
    return {"name": name, "role": role, "dtype": dtype, "shape": [*shape], "layer": layer}


def keys_and_values(prefix: str, rows: str, axis: str) -> list[dict[str, Any]]:
    """Those of the only layer: 2 heads of size 3."""
    return [
        tensor(f"{prefix}_{kind}", "float32", rows, 2, axis, 3, layer=0)
        for kind in ("key", "value")
    ]


@pytest.fixture
def plain_manifest() -> dict[str, Any]:
    """A valid manifest of one decoder layer, as plain data to be changed."""
    return {
        "schema_version": 1,
        "kind": "sequence-to-sequence",
        "name": "by hand",
        "target": "neutral",
        "precision": "fp32",
        "model": {
            "source_vocab_size": 11,
            "target_vocab_size": 13,
            "decoder_layers": 1,
            "num_heads": 2,
            "head_size": 3,
            "max_source_positions": 8,
            "max_target_positions": 20,
            "pad_token_id": 0,
            "start_token_id": 1,
            "end_token_id": 2,
        },
        "architecture": {"family": "transformer", "d_ff": 7, "nested": [{"x": None}]},
        "default_max_new_tokens": 20,
        "graphs": {
            "encoder": {
                "file": "encoder.onnx",
                "inputs": [
                    tensor("source", "int64", "source_batch", "source"),
                    tensor("source_mask", "bool", "source_batch", "source"),
                ],
                "outputs": keys_and_values("cross", "source_batch", "source"),
            },
            "decoder": {
                "file": "decoder.onnx",
                "inputs": [
                    tensor("token", "int64", "batch", "query"),
                    tensor("position", "int64", "batch"),
                    tensor("source_mask", "bool", "source_batch", "source"),
                    *keys_and_values("cross", "source_batch", "source"),
                    *keys_and_values("past", "batch", "capacity"),
                ],
                "outputs": [
                    tensor("logits", "float32", "batch", "query", 13),
                    tensor("next_token", "int64", "batch"),
                    tensor("next_log_probability", "float32", "batch"),
                    *keys_and_values("present", "batch", "capacity"),
                ],
            },
        },
        "executable": {"format": "onnx"},
        "tokenizers": None,
        "files": [
            {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for path, data in CONTENTS.items()
        ],
        "tool_versions": {"dragoman": "0"},
        "languages": None,
        "parity": None,
        "passes": [],
        "generation": {
            "prompt": [],
            "forced_first_token_id": None,
            "forced_last_token_id": None,
            "suppressed_token_ids": [],
            "first_suppressed_token_ids": [],
            "end_token_ids": None,
            "bad_words": [],
            "min_length": 0,
            "encoder_no_repeat_ngram_size": 0,
            "min_new_tokens": 0,
            "no_repeat_ngram_size": 0,
            "repetition_penalty": 1.0,
        },
        "audio": None,
        "speech": None,
    }


@pytest.fixture
def small_bundle(tmp_path: Path, plain_manifest: dict[str, Any]) -> Path:
    """A bundle that is read without problems, though its graph files hold no graphs."""
    directory = tmp_path / "small bundle"
    for path, data in CONTENTS.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(data)
    (directory / "manifest.json").write_text(json.dumps(plain_manifest))
    return directory


@pytest.fixture(scope="session")
def text_case(tmp_path_factory: pytest.TempPathFactory) -> tuple[Transformer, Path]:
    """Post-norm, with tokenizers: letters in, words out."""
    model = varied_model(
        ModelConfig(
            source_vocab_size=29,
            target_vocab_size=23,
            encoder_layers=2,
            decoder_layers=2,
            d_model=24,
            num_heads=3,
            d_ff=40,
            max_source_positions=40,
            max_target_positions=24,
            dropout=0.0,
        ),
        seed=6,
    )
    directory = tmp_path_factory.mktemp("text")
    files = TokenizerFiles(directory / "source.json", directory / "target.json")
    letter_tokenizer().save(str(files.source))
    word_tokenizer(23).save(str(files.target))
    return model, exported(model, directory / "bundle", files)


@pytest.fixture(scope="session")
def ids_case(tmp_path_factory: pytest.TempPathFactory) -> tuple[Transformer, Path]:
    """Pre-norm, odd sizes, heads that do not add up to the model's width; no tokenizers."""
    model = varied_model(
        ModelConfig(
            source_vocab_size=17,
            target_vocab_size=19,
            encoder_layers=1,
            decoder_layers=3,
            d_model=21,
            num_heads=5,
            d_head=7,
            d_ff=33,
            norm_order="pre",
            positions="learned",
            activation="gelu",
            tie_target_output=False,
            logits_bias=True,
            max_source_positions=33,
            max_target_positions=21,
            dropout=0.0,
        ),
        seed=1,
    )
    return model, exported(model, tmp_path_factory.mktemp("ids") / "bundle", None)


@pytest.fixture(scope="session")
def recurrent_case(tmp_path_factory: pytest.TempPathFactory) -> tuple[Transformer, Path]:
    """A recurrent decoder, heads of odd sizes; no tokenizers."""
    model = varied_model(
        ModelConfig(
            source_vocab_size=17,
            target_vocab_size=19,
            encoder_layers=1,
            decoder_layers=2,
            d_model=20,
            num_heads=3,
            d_head=6,
            d_ff=33,
            decoder_kind="ssru",
            max_source_positions=33,
            max_target_positions=21,
            dropout=0.0,
        ),
        seed=9,
    )
    return model, exported(model, tmp_path_factory.mktemp("recurrent") / "bundle", None)


@pytest.fixture(scope="session")
def recurrent_model(recurrent_case: tuple[Transformer, Path]) -> Model:
    return load(recurrent_case[1], threads=1)


@pytest.fixture(scope="session")
def text_model(text_case: tuple[Transformer, Path]) -> Model:
    return load(text_case[1], threads=1)


@pytest.fixture(scope="session")
def ids_model(ids_case: tuple[Transformer, Path]) -> Model:
    return load(ids_case[1], threads=1)


@pytest.fixture(params=["text", "ids", "recurrent"], ids=["post-norm", "pre-norm", "recurrent"])
def pair(request: pytest.FixtureRequest) -> tuple[Transformer, Model]:
    """The oracle's model and the same one loaded from its bundle."""
    reference: Transformer = request.getfixturevalue(f"{request.param}_case")[0]
    model: Model = request.getfixturevalue(f"{request.param}_model")
    return reference, model


@pytest.fixture(scope="session")
def random_sources() -> Callable[..., list[list[int]]]:
    return ragged_sources


@pytest.fixture(scope="session")
def slow_greedy() -> Callable[..., tuple[list[int], float]]:
    """The oracle for what `greedy_uncached` does not do: one source, all recomputed each step."""

    @torch.inference_mode()
    def decode(
        model: Transformer, source: Sequence[int], limit: int, *, min_new_tokens: int = 0
    ) -> tuple[list[int], float]:
        """Generated tokens, the end token included, and the sum of their log-probabilities."""
        tokens, total = [model.config.start_token_id], 0.0
        mask = torch.ones(1, len(source), dtype=torch.bool)
        while len(tokens) <= limit:
            logits = model(torch.tensor([source]), mask, torch.tensor([tokens]))[0, -1]
            allowed = logits.clone()
            if len(tokens) <= min_new_tokens:
                allowed[model.config.end_token_id] = -math.inf
            tokens.append(int(allowed.argmax()))
            total += float(logits.double().log_softmax(0)[tokens[-1]])
            if tokens[-1] == model.config.end_token_id:
                break
        return tokens[1:], total

    return decode


def ragged_sources(config: ModelConfig, count: int, *, seed: int = 0) -> list[list[int]]:
    generator = random.Random(seed)
    lengths = [generator.randint(1, config.max_source_positions) for _ in range(count)]
    return [[generator.randrange(config.source_vocab_size or 0) for _ in range(n)] for n in lengths]


@torch.no_grad()
def varied_model(config: ModelConfig, seed: int) -> Transformer:
    """A model whose outputs depend on source and prefix; some end early, some late, some never.

    The end token is the one that gives the most different lengths, among all that leave some
    outputs without an end.
    """
    model = random_transformer(config, seed=seed, feed_forward_scale=2.0)
    outputs = without_end(model, ragged_sources(config, 40))

    def different_lengths(token: int) -> int:
        found = {output.index(token) if token in output else None for output in outputs}
        return len(found) if None in found else 0

    end = max(range(3, config.target_vocab_size), key=different_lengths)
    assert different_lengths(end) >= 5, "this seed gives outputs that are too much alike"
    model.config = config.replace(end_token_id=end)
    return model


def without_end(model: Transformer, sources: list[list[int]]) -> list[list[int]]:
    """Greedy outputs up to the last position, whatever the end token."""
    source, mask = pad(sources, model.config.pad_token_id)
    target = torch.full((len(sources), 1), model.config.start_token_id)
    for _ in range(model.config.max_target_positions):
        token = model(source, mask, target)[:, -1:].argmax(-1)
        target = torch.cat([target, token], dim=1)
    rows: list[list[int]] = target[:, 1:].tolist()
    return rows


def exported(model: Transformer, directory: Path, tokenizers: TokenizerFiles | None) -> Path:
    directory.mkdir()
    export_bundle(model, directory, name="random", tokenizers=tokenizers)
    return directory


def letter_tokenizer() -> Tokenizer:
    """Letters and no other symbols; ends each text with </s>."""
    symbols = ("<pad>", "<s>", "</s>", *"abcdefghijklmnopqrstuvwxyz")
    tokenizer = Tokenizer(models.WordLevel({symbol: i for i, symbol in enumerate(symbols)}))
    tokenizer.add_special_tokens(list(symbols[:3]))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 2)]
    )
    return tokenizer


def word_tokenizer(size: int) -> Tokenizer:
    """Words w3, w4, ... with spaces between."""
    symbols = ("<pad>", "<s>", "</s>", *(f"w{i}" for i in range(3, size)))
    tokenizer = Tokenizer(models.WordLevel({symbol: i for i, symbol in enumerate(symbols)}))
    tokenizer.add_special_tokens(list(symbols[:3]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer
