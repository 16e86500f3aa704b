"""A model in CTranslate2's format is read as the model that it was written from."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from dragoman.export.checkpoints import read_checkpoint
from dragoman.export.families.ctranslate2 import load_ctranslate2
from dragoman.reference_model import (
    ModelConfig,
    NoMemory,
    ReferenceModel,
    Transformer,
    as_batch,
    greedy_cached,
    greedy_uncached,
    pad,
)
from dragoman.reference_model.stacks import Embedding

from ...random_weights import random_transformer
from .ctranslate2_writer import described, flag, quantized, write_text_model

SIZES: dict[str, Any] = {
    "source_vocab_size": 23,
    "target_vocab_size": 29,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "d_model": 24,
    "num_heads": 3,
    "d_ff": 40,
    "positions": "learned",
    "max_source_positions": 17,
    "max_target_positions": 19,
}
SHARED = {"source_vocab_size": 29, "tie_source_target": True}
OPTIONS: dict[str, dict[str, Any]] = {
    "post-norm": {},
    "pre-norm, one table": {"norm_order": "pre", "activation": "gelu", **SHARED},
    "odd sizes, nothing tied": {
        "d_model": 33,
        "num_heads": 1,
        "d_ff": 19,
        "activation": "silu",
        "tie_target_output": False,
        "logits_bias": True,
    },
    "embedding norm, not scaled": {
        "embedding_norm": True,
        "scale_embedding": False,
        "activation": "gelu_tanh",
        **SHARED,
    },
    "post-norm with final norms": {"final_norm": True, "norm_epsilon": 0.03},
    "no biases": dict.fromkeys(
        ("query_bias", "key_bias", "value_bias", "attention_output_bias", "feed_forward_bias"),
        False,
    ),
    "no key bias, wide heads": {"key_bias": False, "d_head": 10},
    "rms, gated": {
        "norm_order": "pre",
        "norm": "rms",
        "norm_bias": False,
        "gated_feed_forward": True,
        "feed_forward_bias": False,
        "activation": "silu",
    },
}
MARIAN: dict[str, Any] = {"logits_bias": True, "activation": "silu"}
FROM_ZEROS = {"decoder/start_from_zero_embedding": flag(True)}
SCALES = {
    "encoder/scale_embeddings": torch.tensor(3.0),
    "decoder/scale_embeddings": torch.tensor(2.5),
}
SOURCES = [[3, 1, 4, 1, 5, 9], [2], [6, 5, 3]]
each_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())


def random_model(options: dict[str, Any], seed: int = 0) -> Transformer:
    return random_transformer(ModelConfig(**SIZES | options), seed=seed)


def weights(model: ReferenceModel) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


@each_option
def test_fp32_is_read_exactly(options: dict[str, Any], tmp_path: Path) -> None:
    model = random_model(options)
    write_text_model(model, tmp_path)
    read = load_ctranslate2(tmp_path)
    assert not read.training
    changed = {"dropout": read.config.dropout, "pad_token_id": read.config.pad_token_id}
    assert read.config == model.config.replace(final_norm=model.config.has_final_norm, **changed)
    assert weights(read).keys() == weights(model).keys()
    for name, expected in weights(model).items():
        assert torch.equal(weights(read)[name], expected), name


@each_option
@pytest.mark.parametrize("numbers", ["float16", "bfloat16"])
def test_16_bits_are_read_exactly(options: dict[str, Any], numbers: str, tmp_path: Path) -> None:
    model = random_model(options)
    write_text_model(model, tmp_path, numbers=numbers)
    read = weights(load_ctranslate2(tmp_path))
    for name, expected in weights(model).items():
        assert torch.equal(read[name], expected.to(getattr(torch, numbers)).float()), name


@each_option
@pytest.mark.parametrize("numbers", ["int8", "int16"])
def test_integers_are_divided_by_their_scales(
    options: dict[str, Any], numbers: str, tmp_path: Path
) -> None:
    model = random_model(options)
    write_text_model(model, tmp_path, numbers=numbers)
    read = load_ctranslate2(tmp_path)
    # Written again in fp32, the stacks are the dequantized integers.
    stored = quantized(described(model)[0], numbers)
    for name, found in described(read)[0].items():
        value = stored[name]
        if f"{name}_scale" in stored:
            assert not value.is_floating_point()
            scale = stored[f"{name}_scale"]
            value = value.float() / scale.reshape(
                -1, *[1] * (value.dim() - 1 if scale.dim() else 0)
            )
        assert torch.equal(found, value), name


def test_rows_of_int8_are_scaled_apart(tmp_path: Path) -> None:
    model = random_model({})
    with torch.no_grad():
        inner = model.get_parameter("decoder.layers.0.feed_forward.inner.weight")
        inner[3] *= 1000
        inner[4] = 0
    write_text_model(model, tmp_path, numbers="int8")
    found = weights(load_ctranslate2(tmp_path))["decoder.layers.0.feed_forward.inner.weight"]
    largest = inner.detach().abs().amax(1)
    assert ((found - inner.detach()).abs().amax(1) <= largest / 127 / 2 * 1.001).all()


def test_old_int16_without_scale(tmp_path: Path) -> None:
    model = random_model({})
    name = "decoder/layer_0/ffn/linear_0/weight"
    value = (described(model)[0][name] * 1000).round()
    write_text_model(model, tmp_path, options={name: value.short()})
    found = weights(load_ctranslate2(tmp_path))["decoder.layers.0.feed_forward.inner.weight"]
    torch.testing.assert_close(found, value / 1000)


@pytest.mark.parametrize("version", [2, 3, 5])
def test_older_files_state_tokens_themselves(version: int, tmp_path: Path) -> None:
    model = random_model({"tie_target_output": False, "start_token_id": 5, "end_token_id": 4})
    options = {
        "bos_token": torch.tensor(list(b"t5")).char(),
        "eos_token": torch.tensor(list(b"t4")).char(),
    }
    write_text_model(model, tmp_path, version=version, options=options)
    (tmp_path / "config.json").unlink()
    read = load_ctranslate2(tmp_path)
    assert (read.config.start_token_id, read.config.end_token_id) == (5, 4)
    for name, expected in weights(model).items():
        assert torch.equal(weights(read)[name], expected), name


def test_options_of_old_revisions_belong_to_the_model(tmp_path: Path) -> None:
    model = random_model({"norm_order": "pre", "activation": "gelu"})
    old = {
        f"{stack}/{name}"
        for stack in ("encoder", "decoder")
        for name in ("num_heads", "activation")
    }
    options = {"num_heads": torch.tensor(3).char(), "activation": torch.tensor(3).char()}
    write_text_model(model, tmp_path, options=options, without=tuple(old))
    read = load_ctranslate2(tmp_path)
    assert (read.config.num_heads, read.config.activation) == (3, "gelu")


def teacher_forced(model: Transformer) -> torch.Tensor:
    source, mask = pad(SOURCES, 0)
    target = torch.tensor([[1, 7, 11, 13, 17]] * 3)
    with torch.inference_mode():
        logits: torch.Tensor = model(source, mask, target)
    return logits


def test_embeddings_scaled_by_a_number(tmp_path: Path) -> None:
    model = random_model({"scale_embedding": False, **SHARED})
    write_text_model(model, tmp_path, options=SCALES)
    read = load_ctranslate2(tmp_path)
    assert not read.config.scale_embedding
    assert not read.config.tie_source_target
    assert not read.config.tie_target_output
    # The scale applies where tokens are embedded, not where the table gives logits.
    for stack, scale in ((model.encoder, 3.0), (model.decoder, 2.5)):
        cast(Embedding, stack.embedding).scale = scale
    torch.testing.assert_close(teacher_forced(read), teacher_forced(model), atol=1e-5, rtol=1e-5)


def test_a_number_that_is_the_usual_scale_is_one(tmp_path: Path) -> None:
    model = random_model({})
    root = torch.tensor(24.0).sqrt()
    options = {"encoder/scale_embeddings": root, "decoder/scale_embeddings": root}
    write_text_model(model, tmp_path, options=options)
    assert load_ctranslate2(tmp_path).config.scale_embedding


def test_computed_positions(tmp_path: Path) -> None:
    """Sines, then cosines, of positions from 1 on, with wavelengths from 2 pi to 20000 pi."""
    model = random_model({})
    write_text_model(model, tmp_path, without=("encoder/position_encodings",))
    read = weights(load_ctranslate2(tmp_path))
    table = read["encoder.embedding.positions.table"].double().numpy()
    position, step = np.arange(1, 1025)[:, None], np.log(10000) / 11
    angle = position * np.exp(-step * np.arange(12))
    np.testing.assert_allclose(table, np.hstack([np.sin(angle), np.cos(angle)]), atol=1e-4)
    assert torch.equal(
        read["decoder.embedding.positions.table"],
        weights(model)["decoder.embedding.positions.table"],
    )


@pytest.mark.parametrize("tied", [True, False])
def test_start_from_zeros(tied: bool, tmp_path: Path) -> None:
    """As in Marian's models: one more token, which is embedded as zeros and never chosen."""
    model = random_model(MARIAN | (SHARED if tied else {"tie_target_output": False}))
    write_text_model(model, tmp_path, options=FROM_ZEROS)
    read = load_ctranslate2(tmp_path)
    config = read.config
    assert (config.target_vocab_size, config.start_token_id) == (30, 29)
    assert config.source_vocab_size == (30 if tied else 23)
    assert config.tie_source_target == config.tie_target_output == tied
    assert read.generation.suppressed_token_ids == (29,)
    probabilities = [
        each(*as_batch([SOURCES[0]], config), torch.tensor([[1, 4, 7]])).log_softmax(-1)
        for each in (model, read)
    ]
    # The first token differs in no model: it is not the start token.
    assert probabilities[1][..., 29].max() < -25
    torch.testing.assert_close(probabilities[1][..., :29], probabilities[0], atol=1e-6, rtol=0)
    expected = from_zeros(model, SOURCES, 12)
    assert greedy_uncached(read, SOURCES, 12) == expected
    assert greedy_cached(read, SOURCES, 12) == expected


@torch.inference_mode()
def from_zeros(model: Transformer, sources: list[list[int]], steps: int) -> list[list[int]]:
    """Greedy output where the embedding of the first token is replaced by zeros."""

    def replace(module: Any, inputs: Any, embedded: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.zeros_like(embedded[:, :1]), embedded[:, 1:]], 1)

    tokens = model.decoder.embedding.tokens
    start, outputs = torch.zeros(1, dtype=torch.long), []
    for row in sources:
        source, mask = pad([row], 0)
        cross = model.encode(source, mask)
        new: list[int] = []
        with tokens.register_forward_hook(replace):
            while len(new) < steps and model.config.end_token_id not in new:
                logits = model.decode(torch.tensor([[0, *new]]), start, mask, cross, NoMemory())
                new.append(int(logits[0, -1].argmax()))
        outputs.append(new)
    return outputs


def test_special_tokens_by_name(tmp_path: Path) -> None:
    model = random_model({"start_token_id": 8, "end_token_id": 20})
    write_text_model(model, tmp_path)
    for side, size in (("source", 23), ("target", 29)):
        (tmp_path / f"{side}_vocabulary.json").unlink()
        tokens = [f"{side[0]}{i}" for i in range(size)]
        tokens[6] = "<blank>"
        lines = "".join(f"{token}\r\n" for token in tokens)
        (tmp_path / f"{side}_vocabulary.txt").write_bytes(lines.encode())
    config = load_ctranslate2(tmp_path).config
    assert (config.start_token_id, config.end_token_id, config.pad_token_id) == (8, 20, 6)


def test_an_unstated_start_token_is_the_end_token(tmp_path: Path) -> None:
    write_text_model(random_model({"end_token_id": 20}), tmp_path, decoder_start_token=None)
    assert load_ctranslate2(tmp_path).config.start_token_id == 20


def test_norms_without_stated_epsilon(tmp_path: Path) -> None:
    for name, epsilon in (("post-norm", 1e-5), ("rms, gated", 1e-6)):
        directory = tmp_path / name
        write_text_model(random_model(OPTIONS[name]), directory, layer_norm_epsilon=None)
        assert load_ctranslate2(directory).config.norm_epsilon == epsilon


def test_a_directory_is_known_by_its_model_file(tmp_path: Path) -> None:
    model = random_model({})
    write_text_model(model, tmp_path)
    path = tmp_path / "source_vocabulary.json"
    path.write_text(path.read_text().replace("s2", "t2", 1))  # its end token, too
    opened = read_checkpoint(tmp_path)
    assert opened.tokenizers is not None and opened.tokenizers.pretokenized
    assert weights(opened.model).keys() == weights(model).keys()


def test_the_runtime_gives_its_tokens(
    tmp_path: Path, runtime_greedy: Callable[..., list[list[int]]]
) -> None:
    model = random_model(MARIAN | SHARED, seed=4)
    write_text_model(model, tmp_path / "model", numbers="int8", options=FROM_ZEROS)
    read = load_ctranslate2(tmp_path / "model")
    expected = greedy_uncached(read, SOURCES, 15)
    assert runtime_greedy(read, tmp_path, "cpu", SOURCES, 15) == expected


LIBRARY_OPTIONS: dict[str, tuple[dict[str, Any], dict[str, torch.Tensor]]] = {
    **{name: (options, {}) for name, options in OPTIONS.items()},
    "from zeros": (MARIAN | SHARED, FROM_ZEROS),
    "scaled by numbers": ({"scale_embedding": False}, SCALES),
    "positions computed": ({}, {}),
}


@pytest.mark.peers
@pytest.mark.parametrize("name", LIBRARY_OPTIONS)
@pytest.mark.parametrize("seed", range(3))
def test_the_library_gives_the_same_tokens(name: str, seed: int, tmp_path: Path) -> None:
    """The library reads the same files, written by the writer of these tests."""
    peer = importlib.import_module("dragoman.benchmarks.peers.ctranslate2_runtime")
    fields, options = LIBRARY_OPTIONS[name]
    computed = ("encoder/position_encodings", "decoder/position_encodings")
    without = computed if name == "positions computed" else ()
    write_text_model(random_model(fields, seed), tmp_path, options=options, without=without)
    read = load_ctranslate2(tmp_path)
    end = read.config.end_token_id
    rows = greedy_uncached(read, SOURCES, 15)
    expected = [row[:-1] if row[-1] == end else row for row in rows]
    assert peer.CTranslate2Peer(tmp_path, threads=1).generate(SOURCES, 15) == expected


@pytest.mark.parametrize(
    ("stated", "heads"), [(None, [0]), (1, [0]), (2, [0, 1]), (0, [0, 1, 2]), (9, [0, 1, 2])]
)
def test_alignments_are_the_mean_of_the_first_heads(
    stated: int | None, heads: list[int], tmp_path: Path
) -> None:
    """As in CTranslate2: of the last layer; one if the file does not say, and 0 means all."""
    model = random_transformer(ModelConfig(**SIZES), seed=0)
    name = "decoder/alignment_heads"
    options = {} if stated is None else {name: torch.tensor(stated, dtype=torch.int16)}
    write_text_model(model, tmp_path, options=options, without=() if options else (name,))
    found = load_ctranslate2(tmp_path).generation.alignment_heads
    assert found == tuple((1, head) for head in heads)
