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

from dragoman.runtime.serving.apis.http import Fields, json_object, route
from dragoman.runtime.serving.apis.native import error_body
from dragoman.runtime.serving.keys import Keys
from dragoman.runtime.serving.metrics import Metrics
from dragoman.runtime.serving.options import ListenOptions
from dragoman.runtime.serving.process import bind, run_app
from dragoman.runtime.serving.recording import Recorder

from ..peers.interface import Rows

Translate = Callable[[Sequence[list[int]], int], Rows]
"""Of sources, and the most new tokens."""


@dataclass
class Waiting:
    """A request."""

    source: list[int]
    max_new_tokens: int
    future: Future[list[int]] = field(default_factory=Future)


class BatchingQueue:
    """
    Args:
        workers: calls that are made beside each other
        batch: the most requests in a call
    """

    def __init__(self, translate: Translate, workers: int, batch: int) -> None:
        self._translate, self._batch = translate, batch
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
                longest = max(request.max_new_tokens for request in batch)
                rows = self._translate([request.source for request in batch], longest)
            except Exception as error:
                for request in batch:
                    request.future.set_exception(error)
                continue
            for request, row in zip(batch, rows, strict=True):
                request.future.set_result(row)


def create_app(queue: BatchingQueue) -> Starlette:
    """The route that is measured, through all that Dragoman's requests go through."""

    async def generate(request: Request) -> Response:
        fields = Fields(json_object(await request.body()))
        waiting = Waiting(fields.need("source", list), fields.need("max_new_tokens", int))
        fields.end()
        queue.put(waiting)
        tokens = await asyncio.wrap_future(waiting.future)
        return JSONResponse({"model": "peer", "results": [{"tokens": tokens}]})

    recorder = Middleware(Recorder, keys=Keys(()), metrics=Metrics(), log_bodies=False)
    return Starlette(routes=[route("/v1/generate", generate, error_body)], middleware=[recorder])


def ctranslate2(directory: Path, workers: int, threads: int, compute_type: str) -> Translate:
    """A translator that computes several batches beside each other with one copy of the weights."""
    from ..peers.ctranslate2_translator import CTranslate2Peer

    peer = CTranslate2Peer.load(directory, threads, compute_type, workers=workers)
    return lambda sources, longest: peer.generate(list(sources), longest)


def hugging_face(directory: Path, threads: int, batch: int) -> Translate:
    import torch
    import transformers

    from ..peers.hugging_face import until_the_end

    torch.set_num_threads(threads)
    library: Any = transformers
    model = library.MarianMTModel.from_pretrained(directory).float().eval()
    decode = until_the_end(model)
    return lambda sources, longest: decode(sources, batch, longest)


@click.command()
@click.argument("kind", type=click.Choice(["ctranslate2", "hugging-face"]))
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
        translate = ctranslate2(directory, workers, threads, compute_type)
    else:
        translate = hugging_face(directory, threads, batch_size)
    listen = ListenOptions(port=port)
    app = create_app(BatchingQueue(translate, workers, batch_size))
    run_app(app, bind(listen), listen, lifespan="off")


if __name__ == "__main__":
    main()
