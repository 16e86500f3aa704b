"""The ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from dragoman.errors import DragomanError, shown

from .apis import encoders, kserve, libretranslate, live, native, openai
from .apis.http import Endpoint, Protocol, reported_error
from .clients import read_proxies
from .metrics import Metrics
from .middleware import REQUEST_ID, RequestMiddleware
from .models import ModelRegistry
from .options import ServerOptions
from .service import Service

PROTOCOLS = (
    encoders.PROTOCOL,
    openai.PROTOCOL,
    kserve.PROTOCOL,
    libretranslate.PROTOCOL,
    native.PROTOCOL,
)
"""The last one reports errors of paths that belong to no other."""

MEDIA_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; media-src blob:; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


def create_app(
    directories: dict[str, Path], options: ServerOptions, *, preload: bool = True
) -> Starlette:
    """Create the application.

    Args:
        preload: whether bundles are loaded before the start, which fails if one cannot be
    """
    _check_root_path(options.root_path)
    metrics = Metrics()
    models = ModelRegistry(directories, options, metrics.engine_observer)
    metrics.watch(models)
    service = Service(models, options, metrics)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        if preload:
            for model in models.all:
                await model.load()
        watching = asyncio.ensure_future(models.watch())
        try:
            yield
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
            await models.close()
            service.close()

    protocols = (_page(), *PROTOCOLS)
    app = Starlette(
        routes=[
            *(route for protocol in protocols for route in protocol.routes(service)),
            live.route(service),
        ],
        middleware=[
            *_cors(options.cors_origins),
            Middleware(
                RequestMiddleware,
                protocols=protocols,
                keys=service.api_keys,
                metrics=metrics,
                log_bodies=options.log_texts,
                body_bytes=options.max_body_bytes,
                root_path=options.root_path,
                trusted_proxies=read_proxies(options.trusted_proxies),
            ),
        ],
        exception_handlers={HTTPException: _no_route},
        lifespan=lifespan,
    )
    app.state.models, app.state.service = models, service
    return app


def _check_root_path(root_path: str) -> None:
    """Check that no route begins with the root path, which a proxy may have removed."""
    paths = [endpoint.path for protocol in PROTOCOLS for endpoint in protocol.endpoints]
    taken = [path for path in ["/page/", *paths] if f"{path}/".startswith(f"{root_path}/")]
    if root_path and taken:
        raise DragomanError(
            f"root_path: expected a path that no route begins with, found {root_path} of {taken[0]}"
        )


def _cors(origins: Sequence[str]) -> list[Middleware]:
    """Return the middleware that answers preflight requests, which have no API key."""
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=[origin.lower() for origin in origins],
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=(
                REQUEST_ID,
                "Retry-After",
                "Warning",
                "Inference-Header-Content-Length",
            ),
        )
    ]


async def _no_route(request: Request, error: Exception) -> Response:
    known = reported_error(error)
    if known.status == 404:
        known.args = (f"expected a route of this server, found {shown(request.url.path)}",)
    if known.status == 405:
        known.args = (f"expected {known.headers['Allow']}, found {shown(request.method)}",)
    return native.PROTOCOL.error_response(known)


def _page() -> Protocol:
    def endpoint(file: Traversable) -> Endpoint:
        content, media_type = file.read_text("utf-8"), MEDIA_TYPES[Path(file.name).suffix]

        async def answer(service: Service, request: Request) -> Response:
            return Response(content, media_type=media_type, headers=PAGE_HEADERS)

        path = "/" if file.name == "page.html" else f"/page/{file.name}"
        return Endpoint(path, answer, method="GET", is_open=True)

    files = resources.files(__package__).joinpath("page").iterdir()
    return Protocol("page", tuple(map(endpoint, files)), (), native.PROTOCOL.error_body)
