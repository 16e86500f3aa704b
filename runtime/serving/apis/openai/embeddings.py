"""OpenAI's protocol: embeddings."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ....decoding.rejection import RejectedError
from ...service import Service
from ..bodies import BodyError, Fields, json_object
from .usage import prompt_tokens

MOST_INPUTS = 2048


async def embeddings(service: Service, request: Request) -> Response:
    fields = Fields(json_object(await request.body()))
    host = service.hosts.get(fields.need("model", str))
    given = fields.need("input", (str, list))
    form = fields.take("encoding_format", str, "float")
    dimensions = fields.take("dimensions", int)
    fields.ignore("user")
    fields.end()
    if form not in ("float", "base64"):
        raise BodyError(f"encoding_format: expected float or base64, found {form!r:.80}")
    single = isinstance(given, str) or (bool(given) and type(given[0]) is int)
    texts: Sequence[Any] = [given] if single else given
    if not 1 <= len(texts) <= MOST_INPUTS:
        raise BodyError(f"input: expected 1 to {MOST_INPUTS}, found {len(texts)}")
    found = await service.read_texts(host, "embeddings", texts, {"truncate": False})
    for index, one in enumerate(found):
        if one.error is not None:
            raise RejectedError(f"input {index}: {one.error}")
    size = len(found[0].vector)
    if dimensions not in (None, size):
        raise BodyError(f"dimensions: expected {size}, those of the model, found {dimensions}")
    data = [
        {"object": "embedding", "index": index, "embedding": _vector(one.vector, form)}
        for index, one in enumerate(found)
    ]
    read = await service.with_model(host, partial(prompt_tokens, texts))
    usage = {"prompt_tokens": read, "total_tokens": read}
    return JSONResponse({"object": "list", "data": data, "model": host.name, "usage": usage})


def _vector(vector: Any, form: str) -> Any:
    if form == "base64":
        return base64.b64encode(np.ascontiguousarray(vector, "<f4").tobytes()).decode()
    return vector.tolist()
