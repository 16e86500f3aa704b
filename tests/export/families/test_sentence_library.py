"""What sentence-transformers 6.2 saves is read, and computes what the library computes."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.runtime import AbilityError, load

from ...runtime.encoding.conftest import CONFIG, PIECES
from .sentence_directories import VECTOR, WIDTH, transformers
from .test_sentence_layers import ORDER, bundles, random_norm
from .test_sentence_modules import IDENTITY, SIGMOID, TEXTS


@pytest.fixture
def library() -> Any:
    """It takes seconds to import."""
    return importlib.import_module("sentence_transformers")


EMBEDDINGS: dict[str, tuple[Any, list[tuple[str, int]]]] = {
    **{mode: ((mode,), [("Dense", VECTOR)]) for mode in ORDER if mode != "mean"},
    "all poolings": (ORDER, []),
    "dense layers": (("lasttoken", "mean", "cls"), [("Dense", 24), ("Dense", 7), ("Normalize", 0)]),
    "norms": (("max", "mean"), [("LayerNorm", 0), ("Dense", 11), ("Normalize", 0), ("Dense", 5)]),
}
"""Poolings, and the kinds of modules after them with the sizes of dense layers."""

Save = Callable[..., tuple[Any, Path]]


@pytest.fixture
def save(library: Any, bert: Path, tmp_path: Path) -> Save:
    """A model of the library with random modules, and the directory that it saves."""
    modules_of: Any = importlib.import_module("sentence_transformers.sentence_transformer.modules")

    def save(poolings: Any, kinds: list[tuple[str, int]], **settings: Any) -> tuple[Any, Path]:
        torch.manual_seed(5)
        size = len(poolings) * WIDTH
        modules = [modules_of.Transformer(str(bert)), modules_of.Pooling(WIDTH, poolings)]
        for kind, outputs in kinds:
            if kind == "Dense":
                modules.append(modules_of.Dense(size, outputs))
                size = outputs
            elif kind == "LayerNorm":
                modules.append(modules_of.LayerNorm(size))
                modules[-1].norm = random_norm(size)
            else:
                modules.append(modules_of.Normalize())
        theirs = library.SentenceTransformer(modules=modules, device="cpu", **settings)
        theirs.save_pretrained(str(tmp_path / "saved"))
        return theirs, tmp_path / "saved"

    return save


@pytest.mark.parametrize("case", EMBEDDINGS)
def test_embeddings(case: str, save: Save, tmp_path: Path) -> None:
    poolings, kinds = EMBEDDINGS[case]
    theirs, directory = save(poolings, kinds)
    expected = theirs.encode(TEXTS)
    outputs = [size for kind, size in kinds if kind == "Dense"] or [len(poolings) * WIDTH]
    assert expected.shape == (len(TEXTS), outputs[-1])
    is_unit = kinds[-1:] == [("Normalize", 0)]
    first = theirs.encode(TEXTS, truncate_dim=3, normalize_embeddings=is_unit)
    for path in bundles(directory, tmp_path):
        with load(path, threads=1) as model:
            np.testing.assert_allclose(model.encode(TEXTS), expected, rtol=1e-5, atol=1e-5)
            found = model.encode(TEXTS, dimensions=3)
            np.testing.assert_allclose(found, first, rtol=1e-5, atol=1e-5)


def test_mpnet(library: Any, tmp_path: Path) -> None:
    """As all-mpnet-base-v2 is published: MPNet, the mean, and unit length."""
    modules_of: Any = importlib.import_module("sentence_transformers.sentence_transformer.modules")
    torch.manual_seed(2)
    pieces = ["<s>", "<pad>", "</s>", "[UNK]", *"abcdefgh", *(f"##{c}" for c in "abcdefgh")]
    vocabulary = {piece: place for place, piece in enumerate([*pieces, "<mask>"])}
    config = transformers.MPNetConfig(
        **CONFIG | {"vocab_size": len(vocabulary), "max_position_embeddings": 26, "pad_token_id": 1}
    )
    transformers.MPNetModel(config).save_pretrained(tmp_path / "mpnet")
    transformers.MPNetTokenizer(vocab=vocabulary).save_pretrained(tmp_path / "mpnet")
    modules = [
        modules_of.Transformer(str(tmp_path / "mpnet"), max_seq_length=20),
        modules_of.Pooling(config.hidden_size, "mean"),
        modules_of.Normalize(),
    ]
    theirs = library.SentenceTransformer(modules=modules, device="cpu")
    theirs.save_pretrained(str(tmp_path / "saved"))
    texts = [*TEXTS, "a b c d e f g h abc a b c d e f g"]
    for path in bundles(tmp_path / "saved", tmp_path):
        with load(path, threads=1) as model:
            np.testing.assert_allclose(model.encode(texts), theirs.encode(texts), atol=1e-5)


def test_prompts_and_truncation(save: Save, tmp_path: Path) -> None:
    """Texts are cut at the most tokens, embeddings to their first components."""
    texts = [*TEXTS[1:], "h g f e d c b a a b"]
    theirs, directory = save(
        ("mean",),
        [("Normalize", 0)],
        prompts={"query": "a b ", "document": "c "},
        default_prompt_name="query",
        truncate_dim=5,
    )
    for path in bundles(directory, tmp_path):
        with load(path, threads=1) as model:
            for name in (None, "query", "document"):
                expected = theirs.encode(texts, prompt_name=name)
                assert expected.shape == (len(texts), 5)
                with pytest.warns(UserWarning, match="1 of 5 texts were truncated"):
                    found = model.encode(texts, prompt_name=name, truncate=True)
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


RERANKER = {"id2label": {0: "relevance"}, "label2id": {"relevance": 0}}
STATED = {"sentence_transformers": {"activation_fn": IDENTITY, "version": "5.0.0"}}
CROSS_ENCODERS: dict[str, tuple[str, dict[str, Any], Any, str]] = {
    "sigmoid": ("BERT", {}, torch.nn.Sigmoid(), SIGMOID),
    "identity": ("BERT", {}, torch.nn.Identity(), IDENTITY),
    "default": ("BERT", {}, None, SIGMOID),
    "in config.json": ("BERT", STATED, None, IDENTITY),
    "XLM-RoBERTa": ("XLM-RoBERTa", {}, torch.nn.Identity(), IDENTITY),
}
"""A family, more of its configuration, the activation that is given, and that which applies."""
NAMES = ("no", "maybe", "yes")
LABELS: dict[str, Any] = {
    "id2label": dict(enumerate(NAMES)),
    "label2id": {name: number for number, name in enumerate(NAMES)},
}
QUERY, LONG = "who eats food", "food is in paris " * 9
DOCUMENTS = ["The man eats.", "paris", "Paris is in France.", "a", "food food food", "z.", "is in"]
LETTERS = 40
"""The most tokens of the model whose tokens are one or two letters."""


def save_bert(directory: Path, changes: dict[str, Any]) -> None:
    config = transformers.BertConfig(**CONFIG | RERANKER | changes)
    transformers.BertForSequenceClassification(config).save_pretrained(directory)
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))


def save_xlm_roberta(directory: Path, changes: dict[str, Any]) -> None:
    letters = "abcdefghijklmnopqrstuvwxyz.TPF"
    words = ["<s>", "<pad>", "</s>", "<unk>", "\u2581", *letters, "ma", "an", "\u2581th", "<mask>"]
    sizes = {"vocab_size": len(words), "max_position_embeddings": LETTERS + 2}
    tokens = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1}
    config = transformers.XLMRobertaConfig(**CONFIG | sizes | tokens | RERANKER | changes)
    transformers.XLMRobertaForSequenceClassification(config).save_pretrained(directory)
    vocabulary = [(word, -float(place)) for place, word in enumerate(words)]
    tokenizer = transformers.XLMRobertaTokenizer(vocab=vocabulary, model_max_length=LETTERS)
    tokenizer.save_pretrained(directory)


SAVE = {"BERT": save_bert, "XLM-RoBERTa": save_xlm_roberta}


@pytest.mark.parametrize("case", CROSS_ENCODERS)
def test_cross_encoders(case: str, library: Any, tmp_path: Path) -> None:
    """Documents have the library's scores and order, and are cut where it cuts them."""
    family, changes, given, applied = CROSS_ENCODERS[case]
    torch.manual_seed(0)
    SAVE[family](tmp_path / "checkpoint", changes)
    theirs = library.CrossEncoder(str(tmp_path / "checkpoint"), activation_fn=given, device="cpu")
    theirs.save_pretrained(str(tmp_path / "saved"))
    settings = (tmp_path / "saved" / "config_sentence_transformers.json").read_text()
    assert json.loads(settings)["activation_fn"] == applied
    found_in = bundles(tmp_path / "saved", tmp_path)
    if changes:  # an older version saved the activation there, without modules.json
        (tmp_path / "older").mkdir()
        found_in += bundles(tmp_path / "checkpoint", tmp_path / "older")
    for path in found_in:
        with load(path, threads=1) as model:
            for documents in (DOCUMENTS[:1], DOCUMENTS, [*DOCUMENTS[:4], LONG]):
                scores = theirs.predict([(QUERY, document) for document in documents])
                ranked = theirs.rank(QUERY, documents)
                found = model.rerank(QUERY, documents, truncate=True)
                assert [each.index for each in found] == [each["corpus_id"] for each in ranked]
                for each in found:
                    assert each.score == pytest.approx(scores[each.index], abs=1e-5)
                    assert each.truncated == (documents[each.index] == LONG)


def test_cross_encoders_with_several_labels(library: Any, tmp_path: Path) -> None:
    """The library returns logits by default, and ranks with one label only, as we do."""
    torch.manual_seed(0)
    SAVE["BERT"](tmp_path / "checkpoint", LABELS)
    theirs = library.CrossEncoder(str(tmp_path / "checkpoint"), device="cpu")
    theirs.save_pretrained(str(tmp_path / "saved"))
    pairs = [(QUERY, document) for document in DOCUMENTS]
    expected = theirs.predict(pairs, apply_softmax=True)
    with pytest.raises(ValueError, match="num_labels=1"):
        theirs.rank(QUERY, DOCUMENTS)
    for path in bundles(tmp_path / "saved", tmp_path):
        with load(path, threads=1) as model:
            for own, right in zip(model.classify(pairs), expected, strict=True):
                scores = {each.label: each.score for each in own.labels}
                named = dict(zip(NAMES, right.tolist(), strict=True))
                assert scores == pytest.approx(named, abs=1e-5)
            with pytest.raises(AbilityError):
                model.rerank(QUERY, DOCUMENTS)
