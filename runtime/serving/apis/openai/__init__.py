"""OpenAI's API: the list of models, the format of errors, and all endpoints."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dragoman.errors import DragomanError

from ...models import ServedModel
from ...service import Service
from ..encoders import embeddings
from ..http import Endpoint, Protocol, attributed
from .audio import transcribe
from .completions import completions

ERROR_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


def error_body(error: DragomanError) -> dict[str, Any]:
    """Return the JSON body of an error."""
    default = "invalid_request_error" if error.status < 500 else "server_error"
    kind = ERROR_TYPES.get(error.status, default)
    return {"error": {"message": str(error), "type": kind, "param": None, "code": error.code}}


def _model_data(served: ServedModel) -> dict[str, Any]:
    return {"id": served.name, "object": "model", "created": 0, "owned_by": "dragoman"}


async def _models(service: Service, request: Request) -> Response:
    return JSONResponse({"object": "list", "data": list(map(_model_data, service.models.all))})


async def _model(service: Service, request: Request) -> Response:
    served = attributed(request, service.models.get(request.path_params["model"]))
    return JSONResponse(_model_data(served))


PROTOCOL = Protocol(
    "openai",
    (
        Endpoint("/v1/models", _models, method="GET"),
        Endpoint("/v1/models/{model}", _model, method="GET"),
        Endpoint("/v1/embeddings", embeddings),
        Endpoint("/v1/completions", completions),
        Endpoint("/v1/audio/transcriptions", partial(transcribe, task="transcribe")),
        Endpoint("/v1/audio/translations", partial(transcribe, task="translate")),
    ),
    prefixes=("/v1/models", "/v1/embeddings", "/v1/completions", "/v1/audio"),
    error_body=error_body,
)
