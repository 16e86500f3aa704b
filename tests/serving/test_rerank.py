"""Reranking, embeddings and labels, in the forms of Cohere, Jina and text-embeddings-inference."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cohere
import httpx
import numpy as np
import pytest
import torch
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

from dragoman.export import export_bundle
from dragoman.export.checkpoints import read_checkpoint
from dragoman.runtime import DragomanError, RankedDocument, load
from dragoman.runtime.serving.apis.encoders import PROTOCOL

from ..runtime.encoding.conftest import CONFIG, PIECES, transformers
from .bert_bundles import make_berts
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
    "a query that is no text": (
        {"documents": ["a"], "query": 5},
        400,
        "query: expected a string, found an integer",
    ),
    "an empty query": ({"documents": ["a"], "query": ""}, 400, "query: expected a text, found ''"),
    "a blank query": (
        {"texts": ["a"], "query": " \t\u3000"},
        400,
        r"query: expected a text, found ' \\t\\u3000'",
    ),
    "too long a query": ({"texts": ["a"], "query": LONG}, 400, "texts: 0: text has"),
    "logits of Cohere": ({"documents": ["a"], "raw_scores": True}, 400, "unknown: raw_scores"),
    "another field": ({"documents": ["a"], "top": 1}, 400, "unknown: top; the nearest is top_n"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bodies_that_are_refused(case: str, client: httpx.Client) -> None:
    body, status, problem = REFUSED[case]
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        answer = client.post(path, json={"model": "logits", "query": QUERY} | body)
        assert problem in answer.text
        assert answer.status_code == status


@pytest.mark.parametrize("name", ["texts", "documents"])
def test_nothing_is_computed_for_too_many_documents(name: str, client: httpx.Client) -> None:
    def encoded() -> list[str]:
        return re.findall("dragoman_sources_total{.*", client.get("/metrics").text)

    before = encoded()
    body = {"model": "logits", "query": QUERY, name: ["a"] * 1025}
    answer = client.post("/rerank", json=body)
    assert answer.status_code == 400 and encoded() == before
    assert answer.json()["error"] == f"{name}: expected 1 to 1024, found 1025"
    post(client, "/rerank", **body | {name: ["a"] * 1024})
    assert encoded() != before


@pytest.fixture(scope="module")
def berts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_berts(tmp_path_factory.mktemp("berts"))


@pytest.fixture(scope="module")
def encoders(berts: dict[str, Path]) -> Iterator[tuple[httpx.Client, Any]]:
    kept = {name: berts[name] for name in ("vectors", "classes", "answers")}
    with serving(kept) as client, contextlib.ExitStack() as stack:
        yield client, {name: stack.enter_context(load(d, threads=1)) for name, d in kept.items()}


def test_embeddings_of_text_embeddings_inference(encoders: tuple[httpx.Client, Any]) -> None:
    """They are normalized unless the request says otherwise."""
    client, models = encoders
    expected = models["vectors"].encode(DOCUMENTS)
    raw = client.post("/embed", json=EMBED | {"inputs": DOCUMENTS, "normalize": False}).json()
    np.testing.assert_allclose(raw, expected, rtol=1e-6)
    lengths = np.linalg.norm(expected[:, :5], axis=1, keepdims=True)
    found = client.post("/embed", json=EMBED | {"inputs": DOCUMENTS, "dimensions": 5}).json()
    np.testing.assert_allclose(found, expected[:, :5] / lengths, rtol=1e-5)
    (one,) = client.post("/embed", json=EMBED | {"inputs": "paris", "truncate": True}).json()
    np.testing.assert_allclose(one, expected[1] / np.linalg.norm(expected[1]), rtol=1e-5)


@pytest.mark.parametrize("name", [None, "query", "passage"])
def test_prompts_by_name(name: str | None, encoders: tuple[httpx.Client, Any]) -> None:
    """As the prompt's text before the text, in every route that computes embeddings."""
    client, models = encoders
    prompt = {None: "", "query": "who eats ", "passage": "the "}[name]
    expected = models["vectors"].encode(DOCUMENTS, prompt_name=name)
    plain = [f"{prompt}{text}" for text in DOCUMENTS]
    np.testing.assert_array_equal(expected, models["vectors"].encode(plain))
    body = EMBED | {"prompt_name": name}
    found = client.post("/v1/encode", json=body | {"texts": DOCUMENTS}).json()["results"]
    np.testing.assert_array_equal([each["vector"] for each in found], expected)
    answer = client.post("/v1/embeddings", json=body | {"input": DOCUMENTS}).json()
    np.testing.assert_allclose([each["embedding"] for each in answer["data"]], expected, rtol=1e-6)
    assert answer["usage"]["prompt_tokens"] == sum(
        len(models["vectors"].tokenize(text)) for text in plain
    )
    embed = body | {"inputs": DOCUMENTS, "normalize": False}
    np.testing.assert_allclose(client.post("/embed", json=embed).json(), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("path", "texts"), [("/embed", "inputs"), ("/v1/encode", "texts"), ("/v1/embeddings", "input")]
)
def test_prompts_that_a_model_does_not_have(
    path: str, texts: str, encoders: tuple[httpx.Client, Any]
) -> None:
    body = EMBED | {texts: ["a"], "prompt_name": "title"}
    answer = encoders[0].post(path, json=body)
    assert answer.status_code == 400
    assert "prompt_name: expected one of 'query', 'passage', found 'title'" in answer.text


def test_dimensions_of_the_native_route(encoders: tuple[httpx.Client, Any]) -> None:
    client, models = encoders
    expected = models["vectors"].encode(DOCUMENTS, dimensions=5)
    body = EMBED | {"texts": [*DOCUMENTS, LONG]}
    *found, bad = client.post("/v1/encode", json=body | {"dimensions": 5}).json()["results"]
    np.testing.assert_array_equal([each["vector"] for each in found], expected)
    assert bad["vector"] == [] and "expected at most 24" in bad["error"]
    answer = client.post("/v1/encode", json=body | {"dimensions": 25})
    assert answer.status_code == 400
    assert answer.json()["error"] == "dimensions: expected 1 to 24, found 25"


@pytest.fixture(scope="module")
def inference(berts: dict[str, Path]) -> Iterator[Callable[[str], Any]]:
    """Clients of the Hugging Face library, of servers of one model: they name none."""
    with (
        serving({"vectors": berts["vectors"]}) as vectors,
        serving({"classes": berts["classes"]}) as classes,
    ):
        url = {"/embed": vectors, "/similarity": vectors, "/predict": classes}
        yield lambda path: InferenceClient(f"{str(url[path].base_url).rstrip('/')}{path}")


def test_embeddings_of_the_inference_client(
    inference: Any, encoders: tuple[httpx.Client, Any]
) -> None:
    embed, model = inference("/embed"), encoders[1]["vectors"]
    expected = model.encode(DOCUMENTS)
    found = embed.feature_extraction(DOCUMENTS, normalize=False)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    options = {"dimensions": 5, "encoding_format": "float", "truncation_direction": "right"}
    (found,) = embed.feature_extraction(LONG, truncate=True, prompt_name="query", **options)
    with pytest.warns(UserWarning, match="1 of 1 texts were truncated"):
        (own,) = model.encode([LONG], truncate=True, prompt_name="query", dimensions=5)
    np.testing.assert_allclose(found, own / np.linalg.norm(own), rtol=1e-5)
    lengths = np.linalg.norm(expected, axis=1)
    cosines = expected[1:] @ expected[0] / lengths[1:] / lengths[0]
    similar = inference("/similarity").sentence_similarity(DOCUMENTS[0], DOCUMENTS[1:])
    np.testing.assert_allclose(similar, cosines, rtol=1e-5)
    for wrong, problem in (
        ({"encoding_format": "base64"}, "encoding_format: expected float, found 'base64'"),
        ({"truncation_direction": "left"}, "truncation_direction: expected right, found 'left'"),
        ({}, "inputs: 0: text has 42 tokens"),
    ):
        with pytest.raises(HfHubHTTPError) as caught:
            embed.feature_extraction(LONG, **wrong)
        assert caught.value.response.json()["error_type"] == "Validation"
        assert problem in caught.value.response.json()["error"]


def test_labels_of_the_inference_client(inference: Any, encoders: tuple[httpx.Client, Any]) -> None:
    """The client returns the first label of a text, as it does with text-embeddings-inference."""
    (own,) = encoders[1]["classes"].classify(["paris"])
    found = inference("/predict").text_classification("paris")
    assert (found.label, found.score) == (own.label, own.labels[0].score)
    with pytest.raises(HfHubHTTPError, match="unknown: top_k"):
        inference("/predict").text_classification("paris", top_k=1)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((400, "Validation"), (404, "Validation"), (429, "Overloaded")),
        *((503, "Unhealthy"), (500, "Backend"), (504, "Backend")),
    ],
)
def test_types_of_errors(status: int, kind: str) -> None:
    error = DragomanError("full")
    error.status = status
    answer = PROTOCOL.error_response(error)
    assert answer.status_code == status
    assert json.loads(bytes(answer.body)) == {
        "error": "full",
        "code": "invalid_request",
        "error_type": kind,
    }


EMBED, PREDICT = {"model": "vectors"}, {"model": "classes"}


def test_labels_of_text_embeddings_inference(encoders: tuple[httpx.Client, Any]) -> None:
    """A text, a pair, or a list of lists of either."""
    client, models = encoders
    sources = ["paris", ("the man", "eats")]
    expected = [
        [{"label": label.label, "score": label.score} for label in result.labels]
        for result in models["classes"].classify(sources)
    ]
    one = client.post("/predict", json=PREDICT | {"inputs": "paris"}).json()
    pair = client.post("/predict", json=PREDICT | {"inputs": ["the man", "eats"]}).json()
    both = client.post("/predict", json=PREDICT | {"inputs": [["paris"], ["the man", "eats"]]})
    assert [one, pair] == both.json() == expected


def test_the_root_answers_by_the_kind_of_the_model(
    encoders: tuple[httpx.Client, Any], client: httpx.Client
) -> None:
    """A client of text-embeddings-inference that was given no path."""
    served, _ = encoders
    for of, path, body in (
        (served, "/embed", EMBED | {"inputs": ["paris", "the man"]}),
        (served, "/predict", PREDICT | {"inputs": "paris"}),
        (client, "/rerank", {"model": "logits", "query": QUERY, "texts": DOCUMENTS}),
    ):
        assert of.post("/", json=body).json() == of.post(path, json=body).json()
        wrong = of.post("/", json=body | {"other": 1})
        assert (wrong.status_code, wrong.json()["error_type"]) == (400, "Validation")
    assert client.get("/").headers["content-type"].startswith("text/html")


def test_the_root_needs_the_key_though_the_page_does_not(bundles: dict[str, Path]) -> None:
    body = {"model": "logits", "query": QUERY, "texts": DOCUMENTS}
    with serving(bundles, api_keys=("secret",)) as client:
        assert client.get("/").status_code == 200
        assert client.post("/", json=body).status_code == 401
        key = {"Authorization": "Bearer secret"}
        assert client.post("/", json=body, headers=key).status_code == 200


def test_answers_from_windows(encoders: tuple[httpx.Client, Any]) -> None:
    client, models = encoders
    pairs = [["who eats", LONG + "food"], ["a", "b"]]
    expected = models["answers"].answer([tuple(pair) for pair in pairs], stride=4)
    body = {"model": "answers", "texts": pairs}
    found = client.post("/v1/answer", json=body | {"stride": 4}).json()["results"]
    assert [each["text"] for each in found] == [each.text for each in expected]
    assert [each["error"] for each in found] == [None, None]
    assert (
        "expected at most 24" in client.post("/v1/answer", json=body).json()["results"][0]["error"]
    )
    refused = client.post("/v1/answer", json=body | {"stride": 0})
    assert refused.status_code == 400 and "stride: expected an integer of at least" in refused.text


@pytest.mark.parametrize("multi_label", [False, True])
def test_labels_that_are_given(encoders: tuple[httpx.Client, Any], multi_label: bool) -> None:
    client, models = encoders
    options = {"hypothesis_template": "is {}", "multi_label": multi_label}
    labels, texts = ["food", "paris"], ["the man", "a", LONG]
    expected = models["classes"].classify_zero_shot(texts, labels, **options)
    answer = client.post("/v1/classify", json=ZERO_SHOT | {"texts": texts} | options).json()
    assert [
        [(each["label"], each["score"]) for each in result["labels"]]
        for result in answer["results"]
    ] == [[(each.label, each.score) for each in result.labels] for result in expected]
    assert [result["error"] for result in answer["results"]] == [None, None, expected[2].error]


SENTENCES = {"source_sentence": "a", "sentences": ["b"]}
SIMILAR = EMBED | {"inputs": SENTENCES}
ZERO_SHOT = PREDICT | {"labels": ["food", "paris"]}


@pytest.mark.parametrize(
    ("path", "body", "problem"),
    [
        ("/v1/classify", ZERO_SHOT | {"texts": ["a"], "labels": []}, "labels: expected 1 to 1,000"),
        ("/v1/classify", ZERO_SHOT | {"texts": ["a"], "labels": ["b", ""]}, "none empty, found ''"),
        ("/v1/classify", ZERO_SHOT | {"texts": ["a"] * 9000}, "at most 16384 pairs of a text and"),
        ("/v1/classify", PREDICT | {"texts": ["a"], "multi_label": True}, "expected labels, too"),
        (
            "/v1/classify",
            ZERO_SHOT | {"texts": ["a"], "hypothesis_template": "{0.real}"},
            "hypothesis_template: expected a text with one {}",
        ),
        (
            "/v1/classify",
            ZERO_SHOT | {"texts": ["a"], "hypothesis_template": "{}" + "b" * 999},
            "hypothesis_template: expected at most 1,000 characters, found 1,001",
        ),
        (
            "/v1/classify",
            ZERO_SHOT | {"texts": ["a"], "labels": ["a", "b" * 1001]},
            "labels: expected at most 1,000 characters, found 1,001",
        ),
        ("/v1/classify", EMBED | {"texts": ["a"], "labels": ["a"]}, "vectors is a model that comp"),
        ("/embed", EMBED | {"inputs": []}, "inputs: expected 1 to "),
        ("/embed", EMBED | {"inputs": [[1, 2]]}, "inputs: expected texts, found [1, 2]"),
        (
            "/embed",
            EMBED | {"inputs": "a", "dimensions": 99},
            "dimensions: expected 1 to 24, found",
        ),
        ("/embed", EMBED | {"inputs": ["a", LONG]}, "inputs: 1: text has 42 tokens"),
        ("/embed", PREDICT | {"inputs": "a"}, "encode: classes is a model that classifies texts"),
        (
            "/similarity",
            EMBED | {"inputs": {"sentences": ["a"]}},
            "source_sentence: required field",
        ),
        (
            "/similarity",
            SIMILAR | {"inputs": SENTENCES | {"sentences": []}},
            "sentences: expected 1",
        ),
        (
            "/similarity",
            SIMILAR | {"inputs": SENTENCES | {"sentences": [1]}},
            "expected texts, foun",
        ),
        ("/similarity", SIMILAR | {"parameters": {"top": 1}}, "unknown: top"),
        ("/predict", PREDICT | {"inputs": ["a", "b", "c"]}, "expected a text or a pair of texts"),
        ("/predict", PREDICT | {"inputs": [["a"], "b"]}, "expected a text or a pair of texts"),
        ("/predict", PREDICT | {"inputs": "a", "raw_scores": True}, "raw_scores: expected false"),
    ],
)
def test_what_is_refused(
    path: str, body: dict[str, Any], problem: str, encoders: tuple[httpx.Client, Any]
) -> None:
    answer = encoders[0].post(path, json=body)
    assert problem in answer.text
    assert answer.status_code == 400
