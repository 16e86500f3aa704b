"""The server as an application of Ray Serve."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ray import serve
from starlette.applications import Starlette

from dragoman.errors import DragomanError

from ...decoding.options import DEFAULT_BATCH_SIZE
from ..app import create_app
from ..hosts import names_of
from ..logs import log_as_json
from ..options import ServerOptions
from ..replicas import Replicas, arguments

NAME = "dragoman"
"""Of the deployment, in Ray's logs and metrics."""


class Server:
    """What Ray Serve asks of a replica beside requests, which go to the application itself."""

    app: Starlette
    """Ray Serve makes it, with the function that `ingress` is given."""

    async def check_health(self) -> None:
        """
        Raises:
            DragomanError: it is not ready, see `/health/ready`; Ray Serve replaces it.
        """
        dead = [host.name for host in self.app.state.hosts.all if not host.alive]
        if dead:
            raise DragomanError(f"not ready: the device of {', '.join(dead)} was lost")


def application(
    bundles: Sequence[str | Path] | Mapping[str, Path],
    options: ServerOptions | None = None,
    replicas: Replicas | None = None,
) -> Any:
    """An application for `ray.serve.run`: replicas of what `dragoman serve` runs, with its routes.

    A replica takes as many requests as its batches have rows, and as many again wait in it as may
    wait. Beyond, requests wait where the first replica that can take them gets them; when as many
    wait there, further ones are refused with status 429.

    Args:
        bundles: directories, which every machine must have; by name, or each by its own
        options: of each replica; keys among them are part of the application
        replicas: how many there are, and when there are more or fewer

    Raises:
        DragomanError: two bundles have the same name.
    """
    if not isinstance(bundles, Mapping):
        bundles = names_of([Path(bundle) for bundle in bundles])
    directories = {name: Path(path).absolute() for name, path in bundles.items()}
    options, replicas = options or ServerOptions(), replicas or Replicas()
    engine = options.engine
    # Ray sets processors aside for a replica, whatever its machine has.
    loops, threads = engine.loops or 1, engine.threads or 1
    each = engine.rows or DEFAULT_BATCH_SIZE
    engine = dataclasses.replace(engine, loops=loops, threads=threads, rows=each)
    options, rows = dataclasses.replace(options, engine=engine), loops * each

    def build() -> Starlette:
        log_as_json()
        return create_app(directories, options)

    server = serve.deployment(
        name=NAME,
        ray_actor_options={"num_cpus": loops * threads, "num_gpus": replicas.gpus},
        autoscaling_config={
            "min_replicas": replicas.min_replicas,
            "max_replicas": replicas.max_replicas,
            "target_ongoing_requests": replicas.target_ongoing_requests or max(1, rows // 2),
            "upscale_delay_s": replicas.upscale_delay,
            "downscale_delay_s": replicas.downscale_delay,
        },
        max_ongoing_requests=rows + engine.waiting,
        max_queued_requests=engine.waiting,
        backpressure_config={"status_code": 429, "retry_after_s": 1},
        health_check_period_s=replicas.health_seconds,
        graceful_shutdown_timeout_s=replicas.drain_seconds,
        graceful_shutdown_wait_loop_s=min(1.0, replicas.drain_seconds),
    )
    return server(serve.ingress(build)(Server)).bind()


def app(values: dict[str, Any]) -> Any:
    """The application of arguments as `serve run` takes them, or a file of `serve deploy`:

    serve run dragoman.runtime.serving.ray:app bundles=/models/g2p-en max_replicas=8

    Raises:
        DragomanError: see `arguments`.
    """
    read = arguments(values)
    return application(read.bundles, read.server, read.replicas)
