"""Reranking over HTTP, in the forms of Cohere and Jina, and of text-embeddings-inference."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cohere
import httpx
import pytest
import torch

from dragoman.export import export_bundle
from dragoman.export.checkpoints import read_checkpoint
from dragoman.runtime import RankedDocument, load

from ..runtime.encoding.conftest import CONFIG, PIECES, transformers
from .conftest import serving

QUERY = "who eats food"
DOCUMENTS = ["The man eats.", "paris", "Paris is in France.", "a", "food food food"]
LONG = "the man " * 20


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Rerankers whose scores are unbounded, or probabilities."""
    root = tmp_path_factory.mktemp("rerankers")
    return {name: make(root, name, kind) for name, kind in ACTIVATIONS.items()}


ACTIVATIONS = {"logits": "Identity", "probabilities": "Sigmoid"}


def make(root: Path, name: str, activation: str) -> Path:
    torch.manual_seed(0)
    checkpoint, directory = root / f"{name}-checkpoint", root / name
    labels = {"id2label": {0: "relevance"}, "label2id": {"relevance": 0}}
    stated = f"torch.nn.modules.{'linear' if activation == 'Identity' else 'activation'}"
    config = transformers.BertConfig(
        **CONFIG | labels,
        sentence_transformers={"activation_fn": f"{stated}.{activation}", "version": "6.2.0"},
    )
    transformers.BertForSequenceClassification(config).save_pretrained(checkpoint)
    (checkpoint / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    read = read_checkpoint(checkpoint)
    directory.mkdir()
    export_bundle(read.model, directory, name=name, tokenizers=read.tokenizers)
    return directory


@pytest.fixture(scope="module")
def client(bundles: dict[str, Path]) -> Iterator[httpx.Client]:
    with serving(bundles) as client:
        yield client


def expected(directory: Path) -> list[RankedDocument]:
    with load(directory, threads=1) as model:
        return model.rerank(QUERY, DOCUMENTS)


def test_the_client_of_cohere(client: httpx.Client, bundles: dict[str, Path]) -> None:
    with httpx.Client() as http:
        theirs = cohere.ClientV2("any key", base_url=str(client.base_url), httpx_client=http)
        found = theirs.rerank(model="logits", query=QUERY, documents=DOCUMENTS, top_n=3)
    ranked = expected(bundles["logits"])
    assert [each.index for each in found.results] == [each.index for each in ranked[:3]]
    for each, own in zip(found.results, ranked, strict=False):
        assert each.relevance_score == pytest.approx(own.score)
    with httpx.Client() as http:
        older = cohere.Client("any key", base_url=str(client.base_url), httpx_client=http)
        both = older.rerank(model="logits", query=QUERY, documents=DOCUMENTS, return_documents=True)
    assert [each.document and each.document.text for each in both.results] == [
        DOCUMENTS[own.index] for own in ranked
    ]


def post(client: httpx.Client, path: str, **body: Any) -> Any:
    answer = client.post(path, json={"query": QUERY} | body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_form_of_jina(client: httpx.Client, bundles: dict[str, Path]) -> None:
    """Documents are texts or objects, and are cut where they are too long."""
    documents = [{"text": DOCUMENTS[0]}, *DOCUMENTS[1:], LONG]
    found = post(client, "/v1/rerank", model="logits", documents=documents, return_documents=True)
    assert found["model"] == "logits"
    scores = [each["relevance_score"] for each in found["results"]]
    assert scores == sorted(scores, reverse=True) and len(scores) == 6
    own = {each.index: each.score for each in expected(bundles["logits"])}
    for each in found["results"]:
        text = LONG if each["index"] == 5 else DOCUMENTS[each["index"]]
        assert each["document"] == {"text": text}
        assert each["index"] == 5 or each["relevance_score"] == pytest.approx(own[each["index"]])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_form_of_text_embeddings_inference(
    name: str, client: httpx.Client, bundles: dict[str, Path]
) -> None:
    """Scores are probabilities, or logits with raw_scores, whatever the model's own are."""
    ranked = expected(bundles["logits"])
    logits = {each.index: each.score for each in ranked}
    found = post(client, "/rerank", model=name, texts=DOCUMENTS)
    raw = post(client, "/rerank", model=name, texts=DOCUMENTS, raw_scores=True, return_text=True)
    assert [each["index"] for each in found] == [each.index for each in ranked]
    for each in found:
        assert set(each) == {"index", "score"}
        logit = logits[each["index"]]
        assert logit is not None
        assert each["score"] == pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-6)
    for each in raw:
        assert each["text"] == DOCUMENTS[each["index"]]
        assert each["score"] == pytest.approx(logits[each["index"]], abs=1e-4)


REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {
    "no documents": ({"documents": []}, 400, "documents: expected 1 to "),
    "none": ({}, 400, "documents: required field is missing"),
    "both": ({"documents": ["a"], "texts": ["a"]}, 400, "unknown: documents"),
    "another kind": ({"documents": [5]}, 400, "documents: expected texts, found 5"),
    "an object without text": ({"documents": [{"title": "a"}]}, 400, "documents: expected texts"),
    "too long": ({"texts": ["a", LONG]}, 400, "texts: 1: text has 49 tokens"),
    "top_n": ({"documents": ["a"], "top_n": 0}, 400, "top_n: expected at least 1, found 0"),
    "an empty query": ({"documents": ["a"], "query": 5}, 400, "query: expected"),
    "another field": ({"documents": ["a"], "top": 1}, 400, "unknown: top; the nearest is top_n"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bodies_that_are_refused(case: str, client: httpx.Client) -> None:
    body, status, problem = REFUSED[case]
    answer = client.post("/v1/rerank", json={"model": "logits", "query": QUERY} | body)
    assert problem in answer.text
    assert answer.status_code == status
