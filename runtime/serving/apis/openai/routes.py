"""What OpenAI's API is asked for, and the models that there are."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from ...host import Host
from ...service import Service
from ..http import route
from . import audio
from .completions import completions
from .embeddings import embeddings
from .errors import error_body


def routes(service: Service) -> list[BaseRoute]:
    return [
        route("/v1/models", partial(_models, service), error_body, method="GET"),
        route("/v1/models/{model}", partial(_model, service), error_body, method="GET"),
        route("/v1/embeddings", partial(embeddings, service), error_body),
        route("/v1/completions", partial(completions, service), error_body),
        *audio.routes(service),
    ]


def _model_data(host: Host) -> dict[str, Any]:
    return {"id": host.name, "object": "model", "created": 0, "owned_by": "dragoman"}


async def _models(service: Service, request: Request) -> Response:
    return JSONResponse({"object": "list", "data": [_model_data(h) for h in service.hosts.all]})


async def _model(service: Service, request: Request) -> Response:
    return JSONResponse(_model_data(service.hosts.get(request.path_params["model"])))
