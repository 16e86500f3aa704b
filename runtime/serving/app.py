"""The application: routes of all protocols over the bundles that are served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from ..abilities import abilities_data
from ..format.manifest import Manifest
from .apis import kserve, libretranslate, native
from .apis.http import ROUTE, problem_of, route
from .apis.openai.routes import routes as openai_routes
from .host import Host
from .hosts import Hosts
from .keys import Keys
from .metrics import Metrics
from .options import ServerOptions
from .recording import PAGE_FILES, Recorder
from .service import Service

PAGE_KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
"""By the ends of the names of the page's files."""
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; media-src blob:; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


def create_app(
    directories: dict[str, Path], options: ServerOptions, *, preload: bool = True
) -> Starlette:
    """
    Args:
        directories: of bundles, by name
        preload: whether bundles are loaded before the first request; then one that cannot be loaded
            keeps the server from starting

    Raises:
        BundleError: one of them is no bundle.
    """
    metrics = Metrics()
    hosts = Hosts(directories, options, metrics.observe)
    metrics.watch_hosts(hosts)
    service, keys = Service(hosts, options, metrics), Keys(options.keys)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        if preload:
            for host in hosts.all:
                await host.load()
        watching = asyncio.ensure_future(hosts.watch())
        try:
            yield
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
            await hosts.close()
            service.close()

    routes: list[BaseRoute] = [
        *_pages(),
        *(
            route(path, handler, native.error_body, method="GET")
            for path, handler in (
                ("/health/live", partial(_live, hosts)),
                ("/health/ready", partial(_ready, hosts)),
                ("/metrics", partial(_metrics, metrics)),
                ("/v1/bundles", partial(_bundles, hosts)),
            )
        ),
        *native.routes(service),
        *openai_routes(service),
        *kserve.routes(service),
        *libretranslate.routes(service, keys),
    ]
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(
                Recorder,
                keys=keys,
                metrics=metrics,
                log_bodies=options.log_texts,
                body_bytes=options.body_bytes,
            )
        ],
        exception_handlers={HTTPException: _refused},
        lifespan=lifespan,
    )
    app.state.hosts = hosts
    return app


def _refused(request: Request, error: Exception) -> Response:
    """What no route answers."""
    problem = problem_of(error)
    body = native.error_body(problem)
    return JSONResponse(body, problem.status, headers=dict(problem.headers))


async def _live(hosts: Hosts, request: Request) -> Response:
    """Whether the process is of any use: a device that is lost is lost for its lifetime."""
    alive = all(host.alive for host in hosts.all)
    return JSONResponse({"live": alive}, 200 if alive else 503)


async def _ready(hosts: Hosts, request: Request) -> Response:
    """Whether requests can be answered."""
    alive = all(host.alive for host in hosts.all)
    return JSONResponse({"ready": alive}, 200 if alive else 503)


async def _metrics(metrics: Metrics, request: Request) -> Response:
    return PlainTextResponse(metrics.text(), media_type="text/plain; version=0.0.4")


async def _bundles(hosts: Hosts, request: Request) -> Response:
    """What the page and other clients need to know to use a bundle."""
    return JSONResponse({"bundles": [_described(host) for host in hosts.all]})


def _described(host: Host) -> dict[str, Any]:
    manifest = host.manifest
    languages = manifest.languages
    return {
        "name": host.name,
        "loaded": host.loaded,
        "takes": _takes(host.manifest),
        "target": manifest.target,
        "precision": manifest.precision,
        **abilities_data(manifest),
        "languages": sorted(languages.tokens) if languages else [],
        "spoken_languages": sorted(manifest.speech.languages) if manifest.speech else [],
        "shows_attention": "attention" in manifest.graphs,
        "max_new_tokens": manifest.default_max_new_tokens,
    }


def _takes(manifest: Manifest) -> str:
    """What sources are: a bundle without tokenizers takes token ids."""
    if manifest.audio is not None:
        return "audio"
    return "ids" if manifest.tokenizers is None else "text"


def _pages() -> list[BaseRoute]:
    """The page at /, and the files that it consists of."""

    def page(path: str, file: Traversable) -> Route:
        content, kind = file.read_text("utf-8"), PAGE_KINDS[Path(file.name).suffix]

        async def answer(request: Request) -> Response:
            request.scope[ROUTE] = path
            return Response(content, media_type=kind, headers=PAGE_HEADERS)

        return Route(path, answer)

    files = resources.files(__package__).joinpath("page").iterdir()
    return [page("/" if f.name == "page.html" else f"{PAGE_FILES}{f.name}", f) for f in files]
