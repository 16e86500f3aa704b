"""Embeddings, labels and reranking: OpenAI's, Cohere's and text-embeddings-inference's routes."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dragoman.errors import DragomanError, shown

from ...arguments import check_able
from ...encoding.methods import check_query
from ...encoding.results import shortened
from ...encoding.tasks import ranked
from ...model import Model, parts_of
from ..service import Service
from .bodies import (
    MOST_SOURCES,
    BodyError,
    Fields,
    check_results,
    json_object,
    prompt_option,
    reading_options,
)
from .http import Endpoint, Protocol, read_request
from .native import error_body

MOST_INPUTS = 2048


async def embeddings(service: Service, request: Request) -> Response:
    """Answer a request for embeddings."""
    fields, served = await read_request(service, request, names_model=True)
    inputs = fields.require("input", (str, list))
    encoding_format = fields.take("encoding_format", str, "float")
    dimensions = fields.take("dimensions", int)
    options = reading_options(fields) | prompt_option(fields, served.manifest)
    fields.ignore("user")
    fields.end()
    if encoding_format not in ("float", "base64"):
        raise BodyError(
            f"encoding_format: expected float or base64, found {shown(encoding_format)}"
        )
    is_single = isinstance(inputs, str) or (bool(inputs) and type(inputs[0]) is int)
    texts: Sequence[Any] = [inputs] if is_single else inputs
    has_tokenizer = served.manifest.tokenizers is not None
    if has_tokenizer and not service.options.allow_token_ids:
        for text in texts:
            _check_text(text)
    _check_count("input", texts, MOST_INPUTS)
    results = await service.run_encoder(served, "embeddings", texts, options)
    check_results(results, "input ")
    write: Callable[[Any], Any] = np.ndarray.tolist
    if encoding_format == "base64":
        write = _in_base64
    vectors = [write(shortened(result.vector, dimensions)) for result in results]
    data = [
        {"object": "embedding", "index": index, "embedding": vector}
        for index, vector in enumerate(vectors)
    ]
    splits = service.options.split_special_tokens
    reading: dict[str, Any] = {"split_special_tokens": splits} | options

    def count_tokens(model: Model) -> int:
        encoder = parts_of(model).encoder
        return sum(len(encoder.tokenize(text, **reading).ids) for text in texts)

    count = await service.run_with_model(served, count_tokens)
    usage = {"prompt_tokens": count, "total_tokens": count}
    return JSONResponse({"object": "list", "data": data, "model": served.name, "usage": usage})


def _check_text(text: object) -> None:
    if isinstance(text, str):
        return
    if isinstance(text, int | list):
        raise BodyError(
            "input: expected texts, found token ids, which may be of another tokenizer: send texts "
            "(in LangChain: OpenAIEmbeddings(check_embedding_ctx_length=False)), or start the "
            "server with --allow-token-ids to accept ids of the model's own tokenizer"
        )
    raise BodyError(f"input: expected texts, found {shown(text)}")


def _in_base64(vector: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(vector, "<f4").tobytes()).decode()


async def _embed(service: Service, request: Request) -> Response:
    """Embed `inputs`, as text-embeddings-inference does."""
    fields, served = await read_request(service, request)
    inputs = fields.require("inputs", (str, list))
    normalize = fields.take("normalize", bool, True)
    dimensions = fields.take("dimensions", int)
    options = _reading(fields) | prompt_option(fields, served.manifest)
    seconds = fields.take("timeout", (float, int))
    encoding_format = fields.take("encoding_format", str, "float")
    fields.end()
    if encoding_format != "float":
        raise BodyError(f"encoding_format: expected float, found {shown(encoding_format)}")
    texts: list[Any] = [inputs] if isinstance(inputs, str) else inputs
    _check_texts("inputs", texts)
    results = await service.run_encoder(served, "embeddings", texts, options, seconds=seconds)
    check_results(results, "inputs: ")
    vectors = [shortened(result.vector, dimensions) for result in results]
    if normalize:
        vectors = list(map(_normalized, vectors))
    return JSONResponse([vector.tolist() for vector in vectors])


async def _similarity(service: Service, request: Request) -> Response:
    """Return the cosine of a sentence and each other one, as text-embeddings-inference does."""
    fields, served = await read_request(service, request)
    inputs = Fields(fields.require("inputs", dict))
    parameters = Fields(fields.take("parameters", dict, {}))
    sentence, others = inputs.require("source_sentence", str), inputs.require("sentences", list)
    options = _reading(parameters) | prompt_option(parameters, served.manifest)
    seconds = fields.take("timeout", (float, int))
    for each in (fields, inputs, parameters):
        each.end()
    _check_texts("sentences", others)
    texts = [*others, sentence]
    results = await service.run_encoder(served, "embeddings", texts, options, seconds=seconds)
    check_results(results, "sentences: ")
    *vectors, own = (_normalized(result.vector) for result in results)
    return JSONResponse([float(vector @ own) for vector in vectors])


def _normalized(vector: Any) -> Any:
    return vector / max(1e-12, float(np.linalg.norm(vector)))


def _reading(fields: Fields, *, truncate: bool = False) -> dict[str, Any]:
    """Take how texts are read; their end is cut, as text-embeddings-inference does by default."""
    side = fields.take("truncation_direction", str, "right")
    if side.lower() != "right":
        raise BodyError(f"truncation_direction: expected right, found {shown(side)}")
    return reading_options(fields, truncate=truncate)


async def _predict(service: Service, request: Request) -> Response:
    """Classify `inputs`: a text, a pair of texts, or a list of lists of one text or two."""
    fields, served = await read_request(service, request)
    inputs = fields.require("inputs", (str, list))
    raw, options = fields.take("raw_scores", bool, False), _reading(fields)
    seconds = fields.take("timeout", (float, int))
    parameters = Fields(fields.take("parameters", dict, {}))  # of clients, which send an empty one
    for each in (fields, parameters):
        each.end()
    is_batch = isinstance(inputs, list) and not all(isinstance(text, str) for text in inputs)
    given: list[Any] = inputs if is_batch else [[inputs] if isinstance(inputs, str) else inputs]
    _check_count("inputs", given)
    for texts in given:
        are_texts = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
        if not are_texts or len(texts) not in (1, 2):
            raise BodyError(f"inputs: expected a text or a pair of texts, found {shown(texts)}")
    head = served.manifest.head
    is_probability = head is not None and head.multi_label
    several = head is not None and len(head.labels) > 1 and not head.multi_label
    if raw and several:
        raise BodyError("raw_scores: expected false, as this model's scores are probabilities")
    sources = [tuple(texts) if len(texts) == 2 else texts[0] for texts in given]
    results = await service.run_encoder(served, "classify", sources, options, seconds=seconds)
    check_results(results, "inputs: ")
    made = [
        [
            {
                "label": label.label,
                "score": label.score if several else _score(label.score, raw, is_probability),
            }
            for label in result.labels
        ]
        for result in results
    ]
    return JSONResponse(made if is_batch else made[0])


async def _by_kind(service: Service, request: Request) -> Response:
    """Embed, rerank or classify, by the kind of the model, as text-embeddings-inference does."""
    name = Fields(json_object(await request.body())).take("model", str)
    head = service.models.get(name).manifest.head
    if head is None or head.task != "sequence-classification":
        return await _embed(service, request)
    return await (_rerank if len(head.labels) == 1 else _predict)(service, request)


def _check_texts(name: str, texts: Sequence[Any]) -> None:
    _check_count(name, texts)
    for text in texts:
        if not isinstance(text, str):
            raise BodyError(f"{name}: expected texts, found {shown(text)}")


def _check_count(name: str, values: Sequence[Any], most: int = MOST_SOURCES) -> None:
    if not 1 <= len(values) <= most:
        raise BodyError(f"{name}: expected 1 to {most}, found {len(values)}")


async def _rerank(service: Service, request: Request) -> Response:
    """Rank `documents`, or the `texts` of text-embeddings-inference, by relevance to `query`.

    The field selects the form of the answer: Cohere's, or that of text-embeddings-inference, whose
    scores are probabilities unless `raw_scores` is set.
    """
    fields, served = await read_request(service, request)
    query = check_query(fields.require("query", str))
    name = "texts" if "texts" in fields.rest else "documents"
    documents = [_document(name, value) for value in fields.require(name, list)]
    _check_count(name, documents)
    top, options = fields.take("top_n", int), _reading(fields, truncate=name == "documents")
    shows = fields.take("return_text" if name == "texts" else "return_documents", bool, False)
    raw = name == "texts" and fields.take("raw_scores", bool, False)
    seconds = fields.take("timeout", (float, int))
    fields.ignore("max_tokens_per_doc", "priority", "user")
    fields.end()
    if top is not None and top < 1:
        raise BodyError(f"top_n: expected at least 1, found {top}")
    check_able(served.manifest, "rerank")
    pairs = [(query, document) for document in documents]
    results = await service.run_encoder(served, "classify", pairs, options, seconds=seconds)
    check_results(results, f"{name}: ")
    head, ranks = served.manifest.head, list[dict[str, Any]]()
    for each in ranked(results, top):
        score, text = each.score or 0.0, documents[each.index]
        if name == "texts":
            score = _score(score, raw, head is not None and head.multi_label)
            shown_text: dict[str, Any] = {"text": text} if shows else {}
            ranks.append({"index": each.index, "score": score} | shown_text)
        else:
            shown_text = {"document": {"text": text}} if shows else {}
            ranks.append({"index": each.index, "relevance_score": score} | shown_text)
    return JSONResponse(ranks if name == "texts" else {"model": served.name, "results": ranks})


def _document(name: str, value: Any) -> str:
    text = value.get("text") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise BodyError(f"{name}: expected texts, found {shown(value)}")
    return text


def _score(score: float, raw: bool, is_probability: bool) -> float:
    """Return a score as a probability or, if `raw`, as its logit."""
    if raw == is_probability:  # what the model does not give
        if not raw:
            return 1 / (1 + math.exp(-max(-700.0, score)))
        score = min(max(score, 1e-300), 1 - 2**-53)
        return math.log(score) - math.log1p(-score)
    return score


def _error_body(error: DragomanError) -> dict[str, str]:
    """Return the JSON body of an error, with its type in text-embeddings-inference."""
    kinds = {429: "Overloaded", 503: "Unhealthy"}
    kind = kinds.get(error.status, "Backend" if error.status >= 500 else "Validation")
    return error_body(error) | {"error_type": kind}


PROTOCOL = Protocol(
    "encoders",
    (
        *(Endpoint(path, _rerank) for path in ("/rerank", "/v1/rerank", "/v2/rerank")),
        Endpoint("/embed", _embed),
        Endpoint("/predict", _predict),
        Endpoint("/similarity", _similarity),
        Endpoint("/", _by_kind),
    ),
    prefixes=("/rerank", "/v1/rerank", "/v2/rerank", "/embed", "/predict", "/similarity"),
    error_body=_error_body,
)
"""The routes of text-embeddings-inference, and reranking at the paths of Jina and of Cohere."""
