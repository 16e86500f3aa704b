"""The modules of sentence-transformers compute what that library defines."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dragoman.export.checkpoints import read_checkpoint
from dragoman.export.neutral_bundle import export_bundle
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import CheckpointError, pad
from dragoman.runtime import load

from .sentence_directories import PIECES, VECTOR, WIDTH, Write, dense_weights, read

transformers: Any = importlib.import_module("transformers")

TEXTS = ["a b c d e f g h", "c", "h g b", "", "e e"]
POOL: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda hidden: hidden.mean(0),
    "cls": lambda hidden: hidden[0],
    "max": lambda hidden: hidden.max(0).values,
}
LEGACY = {
    "mean": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
}
T, P, D, N = "Transformer", "Pooling", "Dense", "Normalize"


def tokens(text: str) -> list[int]:
    return [2, *(PIECES.index(piece) for piece in text.split()), 3]


@pytest.fixture(scope="module")
def hidden(bert: Path) -> list[Tensor]:
    """Hidden states of each text in a batch of its own, by Hugging Face."""
    theirs = transformers.BertModel.from_pretrained(bert).eval()
    with torch.inference_mode():
        return [theirs(torch.tensor([tokens(text)])).last_hidden_state[0] for text in TEXTS]


def vectors(directory: Path) -> Tensor:
    """Those of all texts, padded, by the reference model."""
    with torch.inference_mode():
        found: Tensor = read(directory)(*pad([tokens(text) for text in TEXTS], 0))[1]
    return found


def assert_close(found: Tensor, expected: list[Tensor]) -> None:
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-5, atol=1e-5)


def settings_of(mode: str, form: str) -> dict[str, Any]:
    if form == "flags":
        return {flag: name == mode for name, flag in LEGACY.items()}
    return {"pooling_mode": mode if form == "name" else [mode], "include_prompt": True}


@pytest.mark.parametrize("form", ["flags", "name", "list"])
@pytest.mark.parametrize("mode", POOL)
def test_pooling(mode: str, form: str, write: Write, hidden: list[Tensor]) -> None:
    directory = write(settings_of(mode, form), Transformer="", Pooling="1_Pooling")
    assert_close(vectors(directory), [POOL[mode](each) for each in hidden])


@pytest.mark.parametrize("mode", ["cls", "max"])
def test_padding_is_not_pooled_in_a_bundle(
    mode: str, write: Write, hidden: list[Tensor], tmp_path: Path
) -> None:
    """Neither as exported nor as optimized. A zero at padding would be the maximum."""
    assert all(each.max() < 0 for each in hidden)
    folders = {"Transformer": "", "Pooling": "1_P", "Dense": "2_D"}
    read = read_checkpoint(write({"pooling_mode": mode}, **folders))
    neutral = new(tmp_path / "neutral")
    bundle = export_bundle(read.model, neutral, name="s", tokenizers=read.tokenizers)
    linear = nn.Linear(WIDTH, VECTOR)
    linear.load_state_dict(dense_weights())
    optimize_bundle(bundle, new(tmp_path / "cpu"), target="cpu")
    with torch.inference_mode():
        expected = torch.stack([torch.tanh(linear(POOL[mode](each))) for each in hidden])
    for target in ("neutral", "cpu"):
        with load(tmp_path / target, threads=1) as model:
            together = model.encode(TEXTS)
            alone = np.concatenate([model.encode([text]) for text in TEXTS])
            states = model.hidden_states(TEXTS)
        np.testing.assert_allclose(together, expected.numpy(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(alone, expected.numpy(), rtol=1e-5, atol=1e-5)
        for found, theirs in zip(states, hidden, strict=True):
            np.testing.assert_allclose(found, theirs.numpy(), rtol=1e-5, atol=1e-5)


def new(directory: Path) -> Path:
    directory.mkdir()
    return directory


@pytest.mark.parametrize("settings", [{}, {LEGACY["cls"]: False}, {"include_prompt": True}])
def test_no_pooling_stated_is_the_mean(
    settings: dict[str, Any], write: Write, hidden: list[Tensor]
) -> None:
    directory = write(settings, Transformer="", Pooling="1_Pooling")
    assert_close(vectors(directory), [each.mean(0) for each in hidden])


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({LEGACY["cls"]: True, LEGACY["mean"]: True}, "cls, mean"),
        ({"pooling_mode": ["max", "mean"]}, "max, mean"),
        ({"pooling_mode": []}, "none"),
        ({"pooling_mode": "lasttoken"}, "lasttoken"),
        ({"pooling_mode": "a\nb"}, r"a\\nb"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "pooling_mode_mean_sqrt_len_tokens"),
        ({"pooling_mode_weightedmean_tokens": True}, "pooling_mode_weightedmean_tokens"),
    ],
    ids=str,
)
def test_other_pooling_is_refused(settings: dict[str, Any], found: str, write: Write) -> None:
    directory = write(settings, Transformer="", Pooling="1_Pooling")
    expected = (
        rf"1_Pooling/config\.json: pooling_mode: expected one of mean, cls, max, found {found}$"
    )
    with pytest.raises(CheckpointError, match=expected) as refused:
        read(directory)
    assert str(refused.value).isprintable()


ACTIVATIONS: dict[str, nn.Module] = {
    "torch.nn.modules.linear.Identity": nn.Identity(),
    "torch.nn.modules.activation.Tanh": nn.Tanh(),
    "torch.nn.modules.activation.ReLU": nn.ReLU(),
    "torch.nn.modules.activation.GELU": nn.GELU(),
    "torch.nn.modules.activation.SiLU": nn.SiLU(),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_dense(name: str, bias: bool, write: Write, hidden: list[Tensor]) -> None:
    settings = {
        "activation_function": name,
        "bias": bias,
        "module_input_name": "sentence_embedding",
    }
    directory = write(dense=settings, Transformer="", Pooling="1_P", Dense="2_D")
    linear = nn.Linear(WIDTH, VECTOR, bias=bias)
    linear.load_state_dict(dense_weights(bias))
    assert_close(vectors(directory), [ACTIVATIONS[name](linear(each.mean(0))) for each in hidden])


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"activation_function": "torch.nn.modules.activation.Mish"},
            "activation_function: exp.*Mish",
        ),
        # The library takes tanh in place of what it does not trust.
        ({"activation_function": "ours.Identity"}, r"activation_function: .* found ours\.Identity"),
        ({"activation_function": None}, "activation_function: .* found None"),
        ({"module_input_name": "token_embeddings"}, "module_input_name: .* 'token_embeddings'"),
        ({"module_output_name": "projected"}, "module_output_name: .* 'projected'"),
        ({"out_features": None}, "out_features: expected at least 1, found None"),
        ({"out_features": 0}, "out_features: expected at least 1, found 0"),
        ({"out_features": True}, "out_features: expected at least 1, found True"),
    ],
    ids=str,
)
def test_other_dense_layers_are_refused(
    settings: dict[str, Any], problem: str, write: Write
) -> None:
    directory = write(dense=settings, Transformer="", Pooling="1_P", Dense="2_D")
    with pytest.raises(CheckpointError, match=rf"2_D/config\.json: {problem}$") as refused:
        read(directory)
    assert str(refused.value).isprintable()


def test_the_size_of_a_dense_layer_is_that_of_its_weights(write: Write) -> None:
    directory = write(dense={"out_features": 7}, Transformer="", Pooling="1_P", Dense="2_D")
    with pytest.raises(CheckpointError, match="7, 16"):
        read(directory)


@pytest.mark.parametrize(
    "kinds",
    [
        [T, P, "CNN"],
        [T, "WeightedLayerPooling", P],
        ["BoW"],
        [T, P, D, D],
        [T, P, P],
        [T, T, P],
        [T, P, N, N],
        [T, P, N, D],
        [P, T],
        [T],
        [T, P, "LSTM\n"],
    ],
    ids="-".join,
)
def test_other_modules_are_refused(kinds: list[str], write: Write) -> None:
    folders = {T: "", P: "1_P", D: "2_D", N: "3_N"}
    directory = write(**folders)
    modules = [{"type": f"library.{kind}", "path": folders.get(kind, "x")} for kind in kinds]
    (directory / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointError, match=r"modules\.json: expected the modules ") as refused:
        read(directory)
    found = ", ".join(kinds).replace("\n", "\\n")
    assert str(refused.value).endswith(f"Dense and Normalize, in this order, found {found}")


def test_no_modules_are_refused(write: Write) -> None:
    directory = write(Transformer="", Pooling="1_P")
    (directory / "modules.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"in this order, found none$"):
        read(directory)


@pytest.mark.parametrize("cased", [False, True])
def test_texts_are_lower_cased(cased: bool, write: Write) -> None:
    """Before a tokenizer that knows no capital letters, whether or not it lower-cases itself."""
    directory = write(Transformer="0_T", Pooling="1_P")
    transformer = directory / "0_T"
    settings = transformer / "sentence_bert_config.json"
    (transformer / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": not cased}))

    def found(lower: bool) -> list[int]:
        settings.write_text(json.dumps({"max_seq_length": 9, "do_lower_case": lower}))
        tokenizers = read_checkpoint(directory).tokenizers
        assert tokenizers is not None and tokenizers.source is tokenizers.target
        source: Any = tokenizers.source
        ids: list[int] = source.encode("A b C[MASK]").ids
        return ids

    assert found(lower=True) == [2, 5, 6, 7, 4, 3]
    assert found(lower=False) == ([2, 1, 6, 1, 4, 3] if cased else [2, 5, 6, 7, 4, 3])


def notes(directory: Path, settings: dict[str, Any]) -> tuple[str, ...]:
    (directory / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return read_checkpoint(directory).notes


def test_prompts_are_noted(write: Write) -> None:
    """And left to the caller."""
    directory = write(Transformer="", Pooling="1_P")
    unneeded = notes(directory, {})
    texts = {"query": "query: ", "document": "", "STS": "x"}
    assert notes(directory, {"prompts": {"query": "", "document": ""}}) == unneeded
    assert notes(directory, {"prompts": texts, "default_prompt_name": "document"}) == (
        *unneeded,
        "sentence-transformers puts a prompt before texts that are encoded as 'query', 'STS'; here "
        "the caller does",
    )
    assert notes(directory, {"prompts": texts, "default_prompt_name": "STS"}) == (
        *unneeded,
        "sentence-transformers puts the prompt 'STS' before every text; here the caller does",
        "sentence-transformers puts a prompt before texts that are encoded as 'query'; here the "
        "caller does",
    )
    many = {str(number): "x" for number in range(9)}
    assert "'4', ...; here" in notes(directory, {"prompts": many})[-1]
    assert notes(directory, {"prompts": ["x"], "default_prompt_name": None}) == unneeded


def test_prompts_that_are_not_pooled_are_noted(write: Write) -> None:
    pooling = {"pooling_mode": "mean", "include_prompt": False}
    found = read_checkpoint(write(pooling, Transformer="", Pooling="1_P")).notes
    assert found[-1] == (
        "sentence-transformers leaves prompts out of the pooling (include_prompt is false); here "
        "they are pooled with their texts"
    )
