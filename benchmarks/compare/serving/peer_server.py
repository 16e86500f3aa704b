"""Serves other tools behind Dragoman's HTTP layer, with a queue that batches waiting requests.

    python -m dragoman.benchmarks.compare.serving.peer_server ctranslate2 DIRECTORY

serves a converted model with the tool's own calls.
"""

from __future__ import annotations

import asyncio
import base64
import io
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import click
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dragoman.runtime.serving.apis.bodies import Fields, json_object
from dragoman.runtime.serving.apis.http import Endpoint, Protocol
from dragoman.runtime.serving.apis.native import error_body
from dragoman.runtime.serving.clients import ApiKeys
from dragoman.runtime.serving.metrics import Metrics
from dragoman.runtime.serving.middleware import RequestMiddleware
from dragoman.runtime.serving.options import ListenOptions
from dragoman.runtime.serving.process import bind, run_app

from ...peers.interface import Rows
from .load import ROUTE


class PeerModel(NamedTuple):
    """A loaded model of another tool."""

    read: Callable[[Fields], Any]
    """Fields of a request's body -> item of a batch."""
    compute: Callable[[Sequence[Any]], Sequence[dict[str, Any]]]
    """Items -> results, as JSON."""


def text_model(translate: Callable[[Sequence[list[int]], int], Rows]) -> PeerModel:
    """Return a text model; a batch runs until its longest output ends."""

    def read(fields: Fields) -> tuple[list[int], int]:
        return fields.require("source", list), fields.require("max_new_tokens", int)

    def compute(items: Sequence[tuple[list[int], int]]) -> list[dict[str, Any]]:
        longest = max(limit for _, limit in items)
        return [{"tokens": row} for row in translate([source for source, _ in items], longest)]

    return PeerModel(read, compute)


def ctranslate2(directory: Path, compute_type: str, workers: int, threads: int) -> PeerModel:
    """Load a translator that runs several batches in parallel with one copy of the weights."""
    from ...peers.ctranslate2_runtime import CTranslate2Peer

    peer = CTranslate2Peer(directory, threads, compute_type, workers=workers)
    return text_model(lambda sources, longest: peer.generate(list(sources), longest))


def hugging_face(directory: Path, compute_type: str, workers: int, threads: int) -> PeerModel:
    """Load Hugging Face's Marian model."""
    from ...peers.hugging_face import load_model, until_the_end

    decode = until_the_end(load_model(directory, threads))
    return text_model(lambda sources, longest: decode(sources, len(sources), longest))


def faster_whisper(directory: Path, compute_type: str, workers: int, threads: int) -> PeerModel:
    """Load faster-whisper, which transcribes one clip per call, with parallel calls."""
    from ...peers.ctranslate2_runtime import load_faster_whisper

    kind: dict[str, Any] = {"mode": compute_type, "way": "greedy", "workers": workers}
    loaded = load_faster_whisper(directory, threads, **kind)
    return PeerModel(
        lambda fields: base64.b64decode(fields.require("audio", str)),
        lambda clips: [{"text": loaded.transcribe(io.BytesIO(clip))} for clip in clips],
    )


KINDS = {"ctranslate2": ctranslate2, "hugging-face": hugging_face, "faster-whisper": faster_whisper}


class BatchingQueue:
    """A queue that gives a free worker all waiting requests, up to a batch."""

    def __init__(
        self, compute: Callable[[Sequence[Any]], Sequence[dict[str, Any]]], workers: int, batch: int
    ) -> None:
        self._compute, self._batch = compute, batch
        self._waiting: SimpleQueue[tuple[Any, Future[dict[str, Any]]]] = SimpleQueue()
        for _ in range(workers):
            threading.Thread(target=self._work, daemon=True).start()

    def put(self, item: Any) -> Future[dict[str, Any]]:
        """Add an item, and return the future of its result."""
        future: Future[dict[str, Any]] = Future()
        self._waiting.put((item, future))
        return future

    def _work(self) -> None:
        while True:
            batch = [self._waiting.get()]
            with suppress(Empty):
                while len(batch) < self._batch:
                    batch.append(self._waiting.get_nowait())
            try:
                results = self._compute([item for item, _ in batch])
            except Exception as error:
                for _, future in batch:
                    future.set_exception(error)
                continue
            for (_, future), result in zip(batch, results, strict=True):
                future.set_result(result)


def create_app(read: Callable[[Fields], Any], queue: BatchingQueue) -> Starlette:
    """Return an application with the measured route, behind Dragoman's middleware."""

    async def generate(service: None, request: Request) -> Response:
        fields = Fields(json_object(await request.body()))
        item = read(fields)
        fields.end()
        result = await asyncio.wrap_future(queue.put(item))
        return JSONResponse({"model": "peer", "results": [result]})

    protocol = Protocol("peer", (Endpoint(ROUTE, generate),), ("/",), error_body)
    common: dict[str, Any] = {"protocols": [protocol], "keys": ApiKeys(()), "metrics": Metrics()}
    middleware = Middleware(RequestMiddleware, **common)
    return Starlette(routes=protocol.routes(None), middleware=[middleware])


@click.command()
@click.argument("kind", type=click.Choice(list(KINDS)))
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--compute-type", default="default")
@click.option("--workers", type=int, required=True)
@click.option("--threads", type=int, required=True)
@click.option("--batch-size", type=int, required=True)
@click.option("--port", type=int, required=True)
def main(kind: str, directory: Path, batch_size: int, port: int, **settings: Any) -> None:
    """Serve a tool that loads DIRECTORY."""
    model, listen = KINDS[kind](directory, **settings), ListenOptions(port=port)
    app = create_app(model.read, BatchingQueue(model.compute, settings["workers"], batch_size))
    run_app(app, bind(listen), listen, lifespan="off")


if __name__ == "__main__":
    main()
