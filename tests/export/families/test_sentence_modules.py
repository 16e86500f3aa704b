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

from dragoman.errors import DragomanError
from dragoman.export.checkpoints import read_checkpoint
from dragoman.export.neutral_bundle import export_bundle
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import CheckpointError, pad
from dragoman.runtime import load
from dragoman.runtime.format.texts import Prompts

from .sentence_directories import PIECES, VECTOR, WIDTH, Write, dense_weights, read

transformers: Any = importlib.import_module("transformers")

TEXTS = ["a b c d e f g h", "c", "h g b", "", "e e"]
POOL: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda hidden: hidden.mean(0),
    "cls": lambda hidden: hidden[0],
    "max": lambda hidden: hidden.max(0).values,
    "mean_sqrt_len_tokens": lambda hidden: hidden.sum(0) / len(hidden) ** 0.5,
    "weightedmean": lambda hidden: (
        sum(n * row for n, row in enumerate(hidden, 1)) / sum(range(len(hidden) + 1))
    ),
    "lasttoken": lambda hidden: hidden[-1],
}
LEGACY = {
    "mean": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
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


@pytest.mark.parametrize("mode", [mode for mode in POOL if mode != "mean"])
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
        ({LEGACY["cls"]: True, "pooling_mode_first_tokens": True}, "cls, pooling_mode_first_token"),
        ({"pooling_mode": ["max", "middle"]}, "max, middle"),
        ({"pooling_mode": ["max", 3]}, "max, 3"),
        ({"pooling_mode": ["max"] * 13}, "max, max.*"),
        ({"pooling_mode": []}, "none"),
        ({"pooling_mode": "a\nb"}, r"a\\nb"),
        ({"pooling_mode_first_tokens": True}, "pooling_mode_first_tokens"),
    ],
    ids=str,
)
def test_other_pooling_is_refused(settings: dict[str, Any], found: str, write: Write) -> None:
    directory = write(settings, Transformer="", Pooling="1_Pooling")
    expected = (
        rf"1_Pooling/config\.json: pooling_mode: expected some of {', '.join(POOL)}, found {found}"
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
        [T, P, P],
        [T, T, P],
        [T, D, P],
        [T, P, D, "LSTM"],
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
    assert str(refused.value).endswith(f"LayerNorm and Normalize, in this order, found {found}")


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


def test_prompts_are_read(write: Write) -> None:
    """An empty one is none."""
    directory = write(Transformer="", Pooling="1_P")
    unneeded = notes(directory, {})
    texts = {"query": "a b ", "document": "", "STS": "c "}
    for default in ("STS", None):
        settings = {"prompts": texts, "default_prompt_name": default}
        assert notes(directory, settings) == unneeded
        tokenizers = read_checkpoint(directory).tokenizers
        assert tokenizers is not None and tokenizers.prompts == Prompts(texts, default)
    assert notes(directory, {"prompts": {"query": "", "document": ""}}) == unneeded
    tokenizers = read_checkpoint(directory).tokenizers
    assert tokenizers is not None and tokenizers.prompts is None


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"prompts": ["x"]}, r"prompts: expected texts by their names, found \['x'\]"),
        ({"prompts": {"q": 1}}, "prompts: expected texts"),
        ({"prompts": {"q": "x"}, "default_prompt_name": "d"}, "expected one of q, found 'd'"),
        ({"truncate_dim": 0}, "truncate_dim: expected at least 1, found 0"),
        ({"truncate_dim": "4"}, "truncate_dim: expected at least 1, found '4'"),
    ],
    ids=str,
)
def test_settings_of_the_library_that_are_refused(
    settings: dict[str, Any], expected: str, write: Write
) -> None:
    with pytest.raises(CheckpointError, match=rf"config_sentence_transformers\.json: .*{expected}"):
        notes(write(Transformer="", Pooling="1_P"), settings)


def test_prompts_that_are_not_pooled_are_refused(write: Write) -> None:
    directory = write(
        {"pooling_mode": "mean", "include_prompt": False}, Transformer="", Pooling="P"
    )
    notes(directory, {"prompts": {"query": ""}})
    with pytest.raises(CheckpointError, match=r"P/config\.json: include_prompt: expected true"):
        notes(directory, {"prompts": {"query": "a "}})


def test_prompts_and_truncation_in_a_bundle(write: Write, bert: Path, tmp_path: Path) -> None:
    """As sentence-transformers 6.2 does it: the prompt is text before the text, and what is left
    of a normalized embedding is not normalized again."""
    directory = write(Transformer="", Pooling="1_P", Normalize="2_N")
    settings = {
        "prompts": {"query": "a b ", "document": "c "},
        "default_prompt_name": "query",
        "truncate_dim": 5,
    }
    (directory / "config_sentence_transformers.json").write_text(json.dumps(settings))
    read = read_checkpoint(directory)
    neutral = new(tmp_path / "neutral")
    bundle = export_bundle(read.model, neutral, name="s", tokenizers=read.tokenizers)
    optimize_bundle(bundle, new(tmp_path / "cpu"), target="cpu")
    theirs = transformers.BertModel.from_pretrained(bert).eval()

    def expected(prompt: str) -> np.ndarray[Any, Any]:
        with torch.inference_mode():
            states = [
                theirs(torch.tensor([tokens(f"{prompt}{text}")])).last_hidden_state[0].mean(0)
                for text in TEXTS[1:]
            ]
        return torch.stack([state / state.norm() for state in states])[:, :5].numpy()

    for target in ("neutral", "cpu"):
        with load(tmp_path / target, threads=1) as model:
            for name, prompt in ((None, "a b "), ("query", "a b "), ("document", "c ")):
                found = model.encode(TEXTS[1:], prompt_name=name)
                np.testing.assert_allclose(found, expected(prompt), rtol=1e-5, atol=1e-5)
            with pytest.raises(DragomanError, match="prompt_name: expected one of 'query', 'doc"):
                model.encode(["c"], prompt_name="passage")
            assert len(model.hidden_states(["c"], prompt_name="document")[0]) == 4


@pytest.mark.parametrize("kept", [WIDTH, WIDTH + 1])
def test_a_truncation_to_all_components_is_none(kept: int, write: Write) -> None:
    directory = write(Transformer="", Pooling="1_P")
    notes(directory, {"truncate_dim": kept})
    head = read(directory).config.head
    assert head is not None and head.truncate_dim == 0


@pytest.fixture
def pairs(bert: Path, tmp_path: Path) -> Callable[..., Path]:
    """A cross-encoder, as sentence-transformers 6 writes it."""

    def make(labels: int = 1, task: str = "sequence-classification", **settings: Any) -> Path:
        directory = tmp_path / "pairs"
        torch.manual_seed(1)
        config = transformers.BertConfig.from_pretrained(bert, num_labels=labels)
        transformers.BertForSequenceClassification(config).eval().save_pretrained(directory)
        (directory / "vocab.txt").write_bytes((bert / "vocab.txt").read_bytes())
        modules = [{"idx": 0, "name": "0", "path": "", "type": "library.Transformer"}]
        (directory / "modules.json").write_text(json.dumps(modules))
        modality = {"text": {"method": "forward", "method_output_name": "logits"}}
        (directory / "sentence_bert_config.json").write_text(
            json.dumps({"transformer_task": task, "modality_config": modality})
        )
        library: dict[str, Any] = {
            "model_type": "CrossEncoder",
            "prompts": {},
            "default_prompt_name": None,
        }
        (directory / "config_sentence_transformers.json").write_text(json.dumps(library | settings))
        return directory

    return make


SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"


def activation_of(directory: Path) -> tuple[int, bool]:
    """The number of labels, and whether a score is a sigmoid."""
    head = read(directory).config.head
    assert head is not None and head.task == "sequence-classification"
    return len(head.labels), head.multi_label


def test_cross_encoders_are_followed(pairs: Callable[..., Path]) -> None:
    assert activation_of(pairs(activation_fn=SIGMOID)) == (1, True)
    assert activation_of(pairs(activation_fn=IDENTITY)) == (1, False)
    assert activation_of(pairs(activation_fn=None)) == (1, True)
    assert activation_of(pairs(3, activation_fn=IDENTITY)) == (3, False)
    assert activation_of(pairs(3, activation_fn=SIGMOID)) == (3, True)


def test_older_cross_encoders_state_it_elsewhere(pairs: Callable[..., Path]) -> None:
    directory = pairs()
    for name in ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"):
        (directory / name).unlink()
    config = directory / "config.json"
    plain = json.loads(config.read_text())
    assert activation_of(directory) == (1, False)  # a regression of transformers
    for stated, sigmoid in (
        ({"sentence_transformers": {"activation_fn": SIGMOID, "version": "4.1.0"}}, True),
        ({"sentence_transformers": {"activation_fn": IDENTITY}}, False),
        ({"sbert_ce_default_activation_function": IDENTITY}, False),
        ({"sbert_ce_default_activation_function": SIGMOID}, True),
    ):
        config.write_text(json.dumps(plain | stated))
        assert activation_of(directory) == (1, sigmoid)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"activation_fn": "torch.nn.modules.activation.Tanh"},
            "activation_fn: expected PyTorch's",
        ),
        ({"activation_fn": "mine.Sigmoid"}, "activation_fn: .* found 'mine.Sigmoid'"),
        ({"task": "text-generation"}, "transformer_task: expected sequence-classification, found"),
        (
            {"prompts": {"q": "a "}, "default_prompt_name": "q"},
            "default_prompt_name: pairs take no",
        ),
    ],
    ids=str,
)
def test_cross_encoders_that_are_refused(
    settings: dict[str, Any], expected: str, pairs: Callable[..., Path]
) -> None:
    with pytest.raises(DragomanError, match=expected):
        read(pairs(**settings))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"query_expansion": {"length": 3}}, "query_expansion: this setting is not supported"),
        ({"processing_kwargs": {"text": {"max_length": 3}}}, "processing_kwargs: .* not supported"),
        ({"transformer_task": "fill-mask"}, "transformer_task: expected feature-extraction, found"),
        (
            {"modality_config": {"text": {"method": "forward", "method_output_name": "pooler"}}},
            "modality_config: expected",
        ),
    ],
    ids=str,
)
def test_settings_of_the_transformer_that_are_refused(
    settings: dict[str, Any], expected: str, write: Write
) -> None:
    directory = write(Transformer="0_T", Pooling="1_P")
    (directory / "0_T" / "sentence_bert_config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match=rf"sentence_bert_config\.json: .*{expected}"):
        read(directory)
