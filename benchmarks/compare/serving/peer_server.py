"""Serves other tools behind Dragoman's HTTP layer, with a queue that batches waiting requests.

    python -m dragoman.benchmarks.compare.serving.peer_server ctranslate2 DIRECTORY

serves a converted model with the tool's own calls.
"""

from __future__ import annotations

import asyncio
import base64
import io
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import click
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dragoman.runtime.serving.api_keys import ApiKeys
from dragoman.runtime.serving.apis.bodies import Fields, json_object
from dragoman.runtime.serving.apis.http import Endpoint, Protocol
from dragoman.runtime.serving.apis.native import error_body
from dragoman.runtime.serving.metrics import Metrics
from dragoman.runtime.serving.middleware import RequestMiddleware
from dragoman.runtime.serving.options import ListenOptions
from dragoman.runtime.serving.process import bind, run_app

from ...peers.interface import Rows


class PeerModel(NamedTuple):
    """A loaded model of another tool.

    Attributes:
        read: fields of a request's body -> item of a batch
        compute: items -> results, as JSON
    """

    read: Callable[[Fields], Any]
    compute: Callable[[Sequence[Any]], Sequence[dict[str, Any]]]


class TextItem(NamedTuple):
    """A request to a text model."""

    source: list[int]
    max_new_tokens: int


def text_model(translate: Callable[[Sequence[list[int]], int], Rows]) -> PeerModel:
    """Return a text model; a batch runs until its longest output ends.

    Args:
        translate: (sources, maximum new tokens) -> outputs
    """

    def compute(items: Sequence[TextItem]) -> list[dict[str, Any]]:
        longest = max(item.max_new_tokens for item in items)
        rows = translate([item.source for item in items], longest)
        return [{"tokens": row} for row in rows]

    def read(fields: Fields) -> TextItem:
        return TextItem(fields.require("source", list), fields.require("max_new_tokens", int))

    return PeerModel(read, compute)


def ctranslate2(directory: Path, workers: int, threads: int, compute_type: str) -> PeerModel:
    """Load a translator that runs several batches in parallel with one copy of the weights."""
    from ...peers.ctranslate2_runtime import CTranslate2Peer

    peer = CTranslate2Peer.load(directory, threads, compute_type, workers=workers)
    return text_model(lambda sources, longest: peer.generate(list(sources), longest))


def hugging_face(directory: Path, threads: int, batch: int) -> PeerModel:
    """Load Hugging Face's Marian model, which decodes batches of similar length."""
    import torch
    import transformers

    from ...peers.hugging_face import until_the_end

    torch.set_num_threads(threads)
    library: Any = transformers
    model = library.MarianMTModel.from_pretrained(directory).float().eval()
    decode = until_the_end(model)
    return text_model(lambda sources, longest: decode(sources, batch, longest))


def faster_whisper(directory: Path, workers: int, threads: int, compute_type: str) -> PeerModel:
    """Load faster-whisper, which transcribes one clip per call, with parallel calls."""
    from ...peers.faster_whisper import FasterWhisperPeer

    peer = FasterWhisperPeer(directory, threads, compute_type, workers=workers)
    return PeerModel(
        lambda fields: base64.b64decode(fields.require("audio", str)),
        lambda clips: [{"text": peer.transcribe(io.BytesIO(clip))} for clip in clips],
    )


@dataclass
class Waiting:
    """A request that waits for its result."""

    item: Any
    future: Future[dict[str, Any]] = field(default_factory=Future)


class BatchingQueue:
    """A queue that gives a free worker all waiting requests, up to a batch.

    Args:
        compute: items -> a result for each
        workers: number of parallel calls
        batch: maximum requests per call
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
        """Add a request, whose future gets the result."""
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
    """Return an application with the measured route, behind Dragoman's middleware."""

    async def generate(service: None, request: Request) -> Response:
        fields = Fields(json_object(await request.body()))
        waiting = Waiting(read(fields))
        fields.end()
        queue.put(waiting)
        result = await asyncio.wrap_future(waiting.future)
        return JSONResponse({"model": "peer", "results": [result]})

    protocol = Protocol((Endpoint("/v1/generate", generate),), ("/",), error_body)
    middleware = Middleware(
        RequestMiddleware, protocols=[protocol], keys=ApiKeys(()), metrics=Metrics()
    )
    return Starlette(routes=protocol.routes(None), middleware=[middleware])


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
    """Serve a tool that loads DIRECTORY."""
    if kind == "ctranslate2":
        model = ctranslate2(directory, workers, threads, compute_type)
    elif kind == "faster-whisper":
        model = faster_whisper(directory, workers, threads, compute_type)
    else:
        model = hugging_face(directory, threads, batch_size)
    listen = ListenOptions(port=port)
    app = create_app(model.read, BatchingQueue(model.compute, workers, batch_size))
    run_app(app, bind(listen), listen, lifespan="off")


if __name__ == "__main__":
    main()
