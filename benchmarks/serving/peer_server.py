"""Other tools behind Dragoman's HTTP layer: what has arrived when a worker is free is its batch.

python -m dragoman.benchmarks.serving.peer_server ctranslate2 DIRECTORY --compute-type int8
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dragoman.runtime.serving.apis.bodies import Fields, json_object
from dragoman.runtime.serving.apis.http import route
from dragoman.runtime.serving.apis.native import error_body
from dragoman.runtime.serving.keys import Keys
from dragoman.runtime.serving.metrics import Metrics
from dragoman.runtime.serving.options import ListenOptions
from dragoman.runtime.serving.process import bind, run_app
from dragoman.runtime.serving.recording import Recorder

from . import peer_models


@dataclass
class Waiting:
    """A request."""

    item: Any
    future: Future[dict[str, Any]] = field(default_factory=Future)


class BatchingQueue:
    """
    Args:
        compute: items -> a result for each
        workers: calls that are made beside each other
        batch: the most requests in a call
    """

    def __init__(
        self,
        compute: Callable[[Sequence[Any]], Sequence[dict[str, Any]]],
        workers: int,
        batch: int,
    ) -> None:
        self._compute, self._batch = compute, batch
        self._waiting: deque[Waiting] = deque()
        self._changed = threading.Condition()
        for _ in range(workers):
            threading.Thread(target=self._work, daemon=True).start()

    def put(self, request: Waiting) -> None:
        with self._changed:
            self._waiting.append(request)
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                count = min(self._batch, len(self._waiting))
                batch = [self._waiting.popleft() for _ in range(count)]
            try:
                results = self._compute([request.item for request in batch])
            except Exception as error:
                for request in batch:
                    request.future.set_exception(error)
                continue
            for request, result in zip(batch, results, strict=True):
                request.future.set_result(result)


def create_app(read: Callable[[Fields], Any], queue: BatchingQueue) -> Starlette:
    """The route that is measured, through all that Dragoman's requests go through."""

    async def generate(request: Request) -> Response:
        fields = Fields(json_object(await request.body()))
        waiting = Waiting(read(fields))
        fields.end()
        queue.put(waiting)
        result = await asyncio.wrap_future(waiting.future)
        return JSONResponse({"model": "peer", "results": [result]})

    recorder = Middleware(Recorder, keys=Keys(()), metrics=Metrics(), log_bodies=False)
    return Starlette(routes=[route("/v1/generate", generate, error_body)], middleware=[recorder])


@click.command()
@click.argument("kind", type=click.Choice(["ctranslate2", "hugging-face", "faster-whisper"]))
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--compute-type", default="default")
@click.option("--workers", type=int, required=True)
@click.option("--threads", type=int, required=True)
@click.option("--batch-size", type=int, required=True)
@click.option("--port", type=int, required=True)
def main(
    kind: str,
    directory: Path,
    compute_type: str,
    workers: int,
    threads: int,
    batch_size: int,
    port: int,
) -> None:
    """Serve another tool, which has DIRECTORY converted."""
    if kind == "ctranslate2":
        model = peer_models.ctranslate2(directory, workers, threads, compute_type)
    elif kind == "faster-whisper":
        model = peer_models.faster_whisper(directory, workers, threads, compute_type)
    else:
        model = peer_models.hugging_face(directory, threads, batch_size)
    listen = ListenOptions(port=port)
    app = create_app(model.read, BatchingQueue(model.compute, workers, batch_size))
    run_app(app, bind(listen), listen, lifespan="off")


if __name__ == "__main__":
    main()
