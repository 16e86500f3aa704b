"""Everything wrong in a directory's files is one clear error; fields that are left out are fine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dragoman.export.checkpoints import read_checkpoint
from dragoman.export.families import FAMILIES
from dragoman.export.families.checkpoint import build
from dragoman.export.families.hugging_face import load_hugging_face
from dragoman.reference_model import (
    CheckpointError,
    ConfigError,
    ModelConfig,
    Transformer,
)
from dragoman.reference_model.checkpoint import weight_shapes

# PyTorch warns about modules that it cannot run as nested tensors.
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")

BART: dict[str, Any] = {
    "model_type": "bart",
    "vocab_size": 19,
    "d_model": 6,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 5,
    "decoder_ffn_dim": 5,
    "max_position_embeddings": 7,
}
MBART = BART | {"model_type": "mbart"}
M2M_100 = BART | {"model_type": "m2m_100", "d_model": 2, "encoder_attention_heads": 1}
M2M_100 |= {"decoder_attention_heads": 1}
T5 = {"model_type": "t5", "vocab_size": 19, "d_model": 6, "num_heads": 3, "d_kv": 2}
WHISPER = BART | {"model_type": "whisper", "vocab_size": 51865, "max_target_positions": 11}
LANGUAGES = {"is_multilingual": True, "lang_to_id": {"<|en|>": 4}, "task_to_id": {"transcribe": 5}}
OWN: dict[str, Any] = {
    "model_type": "torch.nn.Transformer",
    "num_heads": 1,
    "scale_embedding": True,
    "positions": "sinusoidal",
    "pad_token_id": 1,
    "start_token_id": 2,
    "end_token_id": 3,
    "names": {"source_embedding": "tokens"},
}

BERT: dict[str, Any] = {
    "model_type": "bert",
    "architectures": ["BertForSequenceClassification"],
    "vocab_size": 21,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
}
ROBERTA = BERT | {"model_type": "roberta", "architectures": ["RobertaForTokenClassification"]}
DISTILBERT: dict[str, Any] = {"model_type": "distilbert", "dim": 16, "n_layers": 1, "n_heads": 2}
GPT2: dict[str, Any] = {"model_type": "gpt2", "vocab_size": 20, "n_embd": 8, "n_head": 2}
GPT2 |= {"bos_token_id": 0, "eos_token_id": 0}


def write(directory: Path, name: str, content: Any) -> None:
    (directory / name).write_text(json.dumps(content))


def bart_weights(values: dict[str, Any]) -> dict[str, Tensor]:
    """Random weights as Hugging Face stores them, with two extra rows of positions."""
    family = FAMILIES[values["model_type"]]
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, shape in weight_shapes(family.config(values)).items():
        extra = 2 if name.endswith("positions.table") else 0
        size = (shape[0] + extra, *shape[1:])
        weights[family.weight_name(name)] = torch.randn(size, generator=generator)
    return weights


def own_weights() -> dict[str, Tensor]:
    module = nn.ModuleDict({"net": nn.Transformer(4, 1, 1, 1, 6), "tokens": nn.Embedding(19, 4)})
    return {name: tensor.detach() for name, tensor in module.state_dict().items()}


CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"model_type": []}, "model_type: expected one of"),
    ({"model_type": {"a": 1}}, "model_type: expected one of"),
    (BART | {"eos_token_id": [[1]]}, r"eos_token_id: expected a token id, found \[\[1\]\]"),
    (BART | {"eos_token_id": []}, "eos_token_id: expected a token id"),
    (BART | {"bos_token_id": [1, 2]}, r"bos_token_id: several tokens are not supported, found"),
    (BART | {"eos_token_id": "x"}, "end_token_id must be an integer"),
    (BART | {"activation_function": []}, "activation_function: expected one of relu"),
    (BART | {"activation_function": 3}, "activation_function: expected one of relu"),
    (T5 | {"dense_act_fn": {}}, "dense_act_fn: expected one of relu"),
    (
        T5 | {"feed_forward_proj": ["relu"]},
        "feed_forward_proj: expected ACTIVATION or gated-ACTIVATION",
    ),
    (
        T5 | {"feed_forward_proj": "gated-"},
        "feed_forward_proj: expected ACTIVATION or gated-ACTIVATION",
    ),
    (T5 | {"n_positions": 10**13}, "max_source_positions: expected at most 1000000"),
    (BART | {"max_position_embeddings": 10**13}, "max_target_positions: expected at most 1000000"),
    (
        M2M_100 | {"max_position_embeddings": 10**13, "d_model": 4},
        "max_source_positions: expected at most 1000000",
    ),
    (
        BART | {"model_type": "pegasus", "d_model": 3 * 10**9},
        "max_source_positions: expected a table of at most",
    ),
    (M2M_100, "d_model: expected at least 4"),
]


NO_SIZES: list[Any] = ["20", [1], {}, [], True, 1.5]
ALONE: list[tuple[dict[str, Any], str]] = [
    *((BERT | {"vocab_size": size}, "vocab_size: expected an integer") for size in NO_SIZES),
    (BERT | {"vocab_size": -3}, "vocab_size: expected at least 0, found -3"),
    (BERT | {"type_vocab_size": "2"}, "type_vocab_size: expected an integer, found '2'"),
    (BERT | {"type_vocab_size": []}, r"type_vocab_size: expected an integer, found \[\]"),
    (BERT | {"hidden_size": {}}, "hidden_size: expected an integer, found {}"),
    (BERT | {"num_hidden_layers": True}, "num_hidden_layers: expected an integer, found True"),
    (BERT | {"pad_token_id": "x"}, "pad_token_id: expected an integer, found 'x'"),
    (BERT | {"max_position_embeddings": 1.5}, "max_position_embeddings: expected an integer"),
    (BERT | {"layer_norm_eps": "x"}, "norm_epsilon must be a number, found 'x'"),
    (BERT | {"hidden_dropout_prob": {}}, "dropout must be a number, found {}"),
    (BERT | {"hidden_act": []}, "hidden_act: expected one of relu"),
    (BERT | {"tie_word_embeddings": "yes"}, "tie_word_embeddings: expected true or false"),
    *(
        (BERT | {"num_labels": count}, "num_labels: expected an integer from 1 to 1000000, found")
        for count in ("3", 0, -1, 10**12, True, 2.0, [2])
    ),
    (BERT | {"id2label": ["a"]}, "id2label: expected labels by their numbers"),
    (BERT | {"id2label": {}}, "labels: expected at least one"),
    (BERT | {"id2label": {"0": "a", "2": "b"}}, r"id2label: expected numbers .* found \[0, 2\]"),
    *(
        (BERT | {"architectures": stated}, "architectures: expected one of BertModel")
        for stated in (5, {"a": 1}, "BertModel", [5], [["BertModel"]], ["BertForMultipleChoice"])
    ),
    (ROBERTA | {"pad_token_id": []}, r"pad_token_id: expected an integer, found \[\]"),
    (ROBERTA | {"max_position_embeddings": "15"}, "max_position_embeddings: expected an integer"),
    (ROBERTA | {"max_position_embeddings": 1}, "max_source_positions must be at least 1"),
    (ROBERTA | {"type_vocab_size": {}}, "type_vocab_size: expected an integer, found {}"),
    (ROBERTA | {"num_labels": {}}, "num_labels: expected an integer"),
    (DISTILBERT | {"dim": "16"}, "dim: expected an integer, found '16'"),
    (DISTILBERT | {"n_layers": [1]}, r"n_layers: expected an integer, found \[1\]"),
    (DISTILBERT | {"architectures": 5}, "architectures: expected one of DistilBertModel"),
    *((GPT2 | {"n_embd": width}, "n_embd: expected an integer") for width in NO_SIZES),
    (GPT2 | {"n_embd": 0}, "n_embd: expected at least 1, found 0"),
    *((GPT2 | {"n_inner": size}, "d_ff must be an integer") for size in NO_SIZES),
    *(
        (GPT2 | {"architectures": stated}, r"architectures: expected \[\"GPT2LMHeadModel\"\]")
        for stated in (5, {"a": 1}, "GPT2LMHeadModel", [5], ["GPT2DoubleHeadsModel"])
    ),
    (GPT2 | {"vocab_size": "20"}, "target_vocab_size must be an integer, found '20'"),
    (GPT2 | {"n_head": "x"}, "num_heads must be an integer, found 'x'"),
    (GPT2 | {"n_positions": [9]}, r"max_target_positions must be an integer, found \[9\]"),
    (GPT2 | {"layer_norm_epsilon": "q"}, "norm_epsilon must be a number, found 'q'"),
    (GPT2 | {"tie_word_embeddings": "yes"}, "tie_target_output must be true or false"),
    (GPT2 | {"activation_function": {}}, "activation_function: expected one of relu"),
]
"""Cases of encoder-only and decoder-only models."""


@pytest.mark.parametrize(("values", "problem"), [*CONFIGS, *ALONE])
def test_a_bad_configuration(values: dict[str, Any], problem: str, tmp_path: Path) -> None:
    write(tmp_path, "config.json", values)
    with pytest.raises(ConfigError, match=problem):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"repetition_penalty": "x"}, "repetition_penalty: expected a number greater than 0"),
        ({"repetition_penalty": [1.2]}, "repetition_penalty: expected a number greater than 0"),
        ({"repetition_penalty": True}, "repetition_penalty: expected a number greater than 0"),
        ({"repetition_penalty": 0}, "repetition_penalty: expected a number greater than 0"),
        ({"repetition_penalty": -1.5}, "repetition_penalty: expected a number greater than 0"),
        ({"repetition_penalty": 10**400}, "repetition_penalty: expected a number greater than 0"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size: expected at least 0, found -1"),
        ({"no_repeat_ngram_size": [2]}, "no_repeat_ngram_size: expected an integer"),
        ({"min_length": -1}, "min_length: expected at least 0, found -1"),
        ({"min_new_tokens": -3}, "min_new_tokens: expected at least 0, found -3"),
        ({"min_new_tokens": "x"}, "min_new_tokens: expected an integer"),
        ({"bad_words_ids": 5}, "bad_words_ids: expected lists of token ids, found 5"),
        ({"bad_words_ids": [["a"]]}, "bad_words_ids: expected lists of token ids"),
        ({"bad_words_ids": {"a": 1}}, "bad_words_ids: expected lists of token ids"),
        ({"penalty_alpha": 0.6}, "penalty_alpha: this generation setting is not supported"),
        ({"eos_token_id": [1, 20]}, "eos_token_id: expected token ids in"),
        ({"bos_token_id": None}, "expected decoder_start_token_id or bos_token_id, found neither"),
        ({"decoder_start_token_id": [[1]]}, "decoder_start_token_id: expected a token id"),
    ],
)
def test_bad_generation_settings(settings: dict[str, Any], problem: str, tmp_path: Path) -> None:
    write(tmp_path, "config.json", BART)
    write(tmp_path, "generation_config.json", {"bos_token_id": 0} | settings)
    with pytest.raises(ConfigError, match=problem):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"forced_decoder_ids": 5}, "forced_decoder_ids: expected pairs, found 5"),
        ({"forced_decoder_ids": {"1": 2}}, "forced_decoder_ids: expected pairs"),
        ({"forced_decoder_ids": [[1, 2, 3]]}, "forced_decoder_ids: expected pairs"),
        ({"return_timestamps": "yes"}, "return_timestamps: expected true or false, found 'yes'"),
        ({"return_timestamps": True}, "return_timestamps: the model has no timestamps"),
        ({"task": ["transcribe"]}, "task: expected one of transcribe"),
    ],
)
def test_bad_settings_of_speech(settings: dict[str, Any], problem: str, tmp_path: Path) -> None:
    write(tmp_path, "config.json", WHISPER | {"eos_token_id": 2, "decoder_start_token_id": 3})
    write(tmp_path, "generation_config.json", LANGUAGES | {"bos_token_id": 1} | settings)
    with pytest.raises(ConfigError, match=problem):
        read_checkpoint(tmp_path)


def test_features_that_are_no_object(tmp_path: Path) -> None:
    write(tmp_path, "config.json", WHISPER)
    write(tmp_path, "preprocessor_config.json", ["feature_size"])
    with pytest.raises(CheckpointError, match=r"preprocessor_config\.json: expected a JSON object"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("weight_map", [{"a": 1}, {"a": 1, "b": "x"}, {"a": []}, [], None])
def test_a_bad_index_of_weights(weight_map: Any, tmp_path: Path) -> None:
    write(tmp_path, "config.json", BART)
    write(tmp_path, "model.safetensors.index.json", {"weight_map": weight_map})
    with pytest.raises(CheckpointError, match="expected a JSON object with a weight_map"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("shape", [(), (9,), (9, 6, 1)])
def test_positions_of_another_shape(shape: tuple[int, ...], tmp_path: Path) -> None:
    write(tmp_path, "config.json", BART)
    name = "model.encoder.embed_positions.weight"
    save_file(bart_weights(BART) | {name: torch.ones(shape)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"{name} must have shape \[7, 6\]"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"names": []}, "names: expected an object"),
        ({"ignored": 5}, "ignored: expected a list"),
        ({"num_heads": None}, "missing field 'num_heads'"),
        ({"activation": 5}, "activation: expected a string"),
        ({"max_positions": 10**13}, "max_source_positions: expected at most 1000000"),
    ],
)
def test_a_bad_description(fields: dict[str, Any], problem: str, tmp_path: Path) -> None:
    write(tmp_path, "config.json", OWN | fields)
    save_file(own_weights(), tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=problem):
        read_checkpoint(tmp_path)


def test_names_that_are_null_are_missing(tmp_path: Path) -> None:
    save_file(own_weights(), tmp_path / "model.safetensors")
    write(tmp_path, "config.json", OWN | {"ignored": None, "max_positions": None})
    assert read_checkpoint(tmp_path).model.config.max_source_positions == 1024
    write(tmp_path, "config.json", OWN | {"names": None})
    with pytest.raises(CheckpointError, match=r"names\.source_embedding: expected a weight"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("error", [RuntimeError("no memory\nat x"), MemoryError()])
def test_a_model_that_does_not_fit_into_memory(
    error: Exception,
) -> None:
    config = ModelConfig(source_vocab_size=5, target_vocab_size=5, d_model=4, num_heads=1)
    weights = dict(Transformer(config).named_parameters())

    def fails() -> Transformer:
        raise error

    with pytest.raises(ConfigError, match="the model is too large for this machine"):
        build(config, fails, dict(weights), str, Path("weights"))


@pytest.mark.parametrize(
    ("values", "settings", "tokens"),
    [
        (MBART, {"decoder_start_token_id": 5, "eos_token_id": [7]}, (5, 7)),
        (MBART | {"eos_token_id": 99}, {"decoder_start_token_id": 5, "eos_token_id": 7}, (5, 7)),
        # `generate` starts from bos_token_id if nothing else is stated, whatever config.json says.
        (MBART | {"decoder_start_token_id": 4}, {"bos_token_id": 6}, (6, 2)),
        (MBART, {"bos_token_id": 6}, (6, 2)),
        (MBART, None, (0, 2)),
        (BART | {"decoder_start_token_id": None, "bos_token_id": 3}, None, (3, 2)),
        (BART, None, (2, 2)),
    ],
)
def test_tokens_that_decoding_starts_from_and_ends_with(
    values: dict[str, Any], settings: Any, tokens: tuple[int, int], tmp_path: Path
) -> None:
    write(tmp_path, "config.json", values)
    if settings is not None:
        write(tmp_path, "generation_config.json", settings)
    save_file(bart_weights(values | {"eos_token_id": 2}), tmp_path / "model.safetensors")
    config = load_hugging_face(tmp_path).config
    assert (config.start_token_id, config.end_token_id) == tokens


def test_saved_without_its_head(tmp_path: Path) -> None:
    """As `BartModel` is saved: its names lack the prefix, and the output is tied."""
    write(tmp_path, "config.json", BART | {"architectures": ["BartModel"]})
    weights = bart_weights(BART)
    weights["final_logits_bias"] = torch.zeros(19)
    file = tmp_path / "model.safetensors"
    save_file(weights, file)
    whole = load_hugging_face(tmp_path).state_dict()
    del weights["final_logits_bias"]
    save_file({name.removeprefix("model."): w for name, w in weights.items()}, file)
    bare = load_hugging_face(tmp_path).state_dict()
    assert bare.keys() == whole.keys()
    assert all(torch.equal(bare[name], whole[name]) for name in whole)


def test_a_size_of_whisper_that_there_is_not(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dragoman.benchmarks.models.real_models", "huge"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (1, "expected one of tiny.en, base, found 'huge'\n")
    assert not list(tmp_path.iterdir())
