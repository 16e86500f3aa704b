"""OpenAI's API: embeddings."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dragoman.errors import shown

from ....decoding.results import RejectedError
from ....model import Model
from ...service import Service
from ..bodies import BodyError, Fields, json_object, split_option
from ..http import attributed

MOST_INPUTS = 2048


async def embeddings(service: Service, request: Request) -> Response:
    """Answer a request for embeddings."""
    fields = Fields(json_object(await request.body()))
    served = attributed(request, service.models.get(fields.require("model", str)))
    inputs = fields.require("input", (str, list))
    encoding_format = fields.take("encoding_format", str, "float")
    dimensions = fields.take("dimensions", int)
    options = {"truncate": False, **split_option(fields)}
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
    if not 1 <= len(texts) <= MOST_INPUTS:
        raise BodyError(f"input: expected 1 to {MOST_INPUTS}, found {len(texts)}")
    results = await service.run_encoder(served, "embeddings", texts, options)
    for index, result in enumerate(results):
        if result.error is not None:
            raise RejectedError(f"input {index}: {result.error}")
    size = len(results[0].vector)
    if dimensions not in (None, size):
        raise BodyError(
            f"dimensions: expected {size}, those of the model, found {shown(dimensions)}"
        )
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": _embedding_data(result.vector, encoding_format),
        }
        for index, result in enumerate(results)
    ]
    splits = options.get("split_special_tokens", service.options.split_special_tokens)
    count = await service.run_with_model(served, partial(prompt_tokens, texts, splits))
    usage = {"prompt_tokens": count, "total_tokens": count}
    return JSONResponse({"object": "list", "data": data, "model": served.name, "usage": usage})


def _check_text(text: object) -> None:
    """Check that an input is a text.

    Raises:
        BodyError: it is something else, such as token ids, which a client may have from another
            tokenizer: the ids of one are other words to another.
    """
    if isinstance(text, str):
        return
    if isinstance(text, int | list):
        raise BodyError(
            "input: expected texts, found token ids, which may be of another tokenizer: send texts "
            "(in LangChain: OpenAIEmbeddings(check_embedding_ctx_length=False)), or start the "
            "server with --allow-token-ids to accept ids of the model's own tokenizer"
        )
    raise BodyError(f"input: expected texts, found {shown(text)}")


def prompt_tokens(sources: Sequence[Any], split_special_tokens: bool, model: Model) -> int:
    """Count the tokens of all sources."""
    splits = split_special_tokens
    return sum(len(model.tokenize(source, split_special_tokens=splits)) for source in sources)


def _embedding_data(vector: Any, encoding_format: str) -> Any:
    if encoding_format == "base64":
        return base64.b64encode(np.ascontiguousarray(vector, "<f4").tobytes()).decode()
    return vector.tolist()
